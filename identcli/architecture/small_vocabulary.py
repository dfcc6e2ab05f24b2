"""What a tied head of few tokens leaves free (theory 11): character models have V below E.

With V ≥ E a tied head breaks the rotations of the residual stream. With fewer tokens many survive, and the
first layer meets inputs from a space of V + T − 1 dimensions only.
"""

from dataclasses import dataclass
from typing import Literal

from identcli.architecture.description import Architecture, Tokens
from identcli.architecture.formula import Formula


@dataclass(frozen=True)
class Term:
    name: str
    group: str
    formula: Formula
    only_at_least: bool


@dataclass(frozen=True)
class SmallVocabulary:
    """terms to count, and the families that the first of them includes already."""

    terms: tuple[Term, ...]
    instead_of: frozenset[str]


def small_vocabulary(
    architecture: Architecture, outputs: Literal["log_probs", "logits"], eps: bool
) -> SmallVocabulary | None:
    """The terms for a GPT with a tied head, learned positions and V < E; None for all other models.

    rotations: unknowns − equations + C(V − 3, 2) for the gauge {[dW Γ + W dΓ + W Γ A]P = 0, dW β + W dβ = 0,
    dW = −W A + e W + 1cᵀ + dm 1ᵀ}, held against numerical ranks for V well below E. unseen: the columns of
    layer 0's W_Q, W_K, W_V outside the span of its inputs, and a trade of b_O; at least so many.
    """
    stack, inputs = architecture.stack, architecture.stack.inputs
    applies = architecture.tied and isinstance(inputs, Tokens) and stack.centred and not stack.embedding_norm
    if not applies or not isinstance(inputs, Tokens) or not inputs.positions or inputs.types:
        return None
    if inputs.vocab >= architecture.width:
        return None
    offset = stack.final_norm is not None and stack.final_norm.bias
    letters = {"E": architecture.width, "V": inputs.vocab, "T": inputs.positions}
    unknowns = f"(E - 1)*(E - 2)//2 + {int(not eps)} + (E - 1) + V + E{' + E' * offset}"
    equations = f"(V - {int(outputs == 'log_probs')})*((E - 1){' + 1' * offset})"
    # Binomial (V − 3 over 2): 0 for V ≤ 4, where the polynomial would go on.
    dependent = " + (V - 3)*(V - 4)//2" if inputs.vocab > 4 else ""
    rotations = Formula(f"{unknowns} - {equations}{dependent}", letters)
    plain = Formula("E" if outputs == "log_probs" else "0" if offset else "1", letters)
    terms = []
    if rotations.value > plain.value:
        words = "rotations, trades and means that V tokens don't fix"
        terms.append(Term("small_vocabulary", words, rotations, only_at_least=False))
    if inputs.vocab + inputs.positions - 1 < architecture.width - 1:
        bias = " + (E - V - T)" if stack.blocks[0].attention.o_bias else ""
        a = stack.blocks[0].attention
        rows = {"H": a.heads, "G": a.kv_groups, "D": a.qk_size, "C": a.v_size}
        text = Formula(f"(H*D + G*D + G*C)*(E - V - T){bias}", letters | rows)
        terms.append(Term("unseen_directions", "columns that no input meets", text, only_at_least=True))
    instead = {"table_trade", "residual_scale"} if terms and terms[0].name == "small_vocabulary" else set()
    return SmallVocabulary(tuple(terms), frozenset(instead))
