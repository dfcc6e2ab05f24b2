"""One grid of small attention layers for all tests: heads × kv groups × sizes × biases × positions × circuit.

Sizes are small and all different (2 layers, D = 6, C = 5, E = 6 or 9), so that a mixed-up axis shows.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from identcli.architecture.groups import Group, RotaryStyle
from identcli.architecture.pairs import Attention, Circuit, PairFamily
from identcli.symmetry.pair import Pair, gather

LAYERS, QK_SIZE, V_SIZE = 2, 6, 5
HEADS = ((2, 2), (4, 2), (3, 1))  # heads, kv groups: one key a head, grouped, one key for all
WIDTHS = (9, 6)  # E: D < E and D = E
BIASES = ("", "qkv")
# How many of the 6 rows turn with the position, and which of them turn together.
POSITIONS: dict[str, tuple[int, RotaryStyle]] = {
    "none": (0, "half"),
    "half": (6, "half"),
    "interleaved": (6, "interleaved"),
    "partial": (4, "half"),
}


@dataclass(frozen=True)
class Case:
    """One circuit of one attention layer."""

    circuit: Circuit
    attention: Attention
    positions: str

    @property
    def family(self) -> PairFamily:
        return self.attention.pair(self.circuit)

    @property
    def group(self) -> Group:
        return self.family.group

    @property
    def biased(self) -> bool:
        return self.attention.q_bias

    def pair(self, seed: int = 0) -> Pair:
        """Random weights of the case as its pairs, (2 layers, kv groups, …)."""
        return gather(self.family, random_roles(self.attention, seed))

    def __str__(self) -> str:
        facts = self.attention
        bias = "bias" if self.biased else "nobias"
        return f"{self.circuit}-{facts.heads}of{facts.kv_groups}-E{facts.embedding}-{bias}-{self.positions}"


def attention(
    heads: int = 2, kv_groups: int = 2, embedding: int = 9, biases: str = "qkv", positions: str = "none"
) -> Attention:
    """The facts of one layer of the grid; `biases` names those that exist by their letters."""
    rotary, style = POSITIONS[positions]
    q, k, v = (letter in biases for letter in "qkv")
    return Attention(LAYERS, heads, kv_groups, embedding, QK_SIZE, V_SIZE, q, k, v, rotary=rotary, rotary_style=style)


def _grid() -> tuple[Case, ...]:
    cases = []
    for (heads, kv_groups), width, biases in product(HEADS, WIDTHS, BIASES):
        for positions in POSITIONS:
            facts = attention(heads, kv_groups, width, biases, positions)
            cases.append(Case("qk", facts, positions))
        # Positions don't reach values: one case, of a layer that has rotary positions in its other circuit.
        cases.append(Case("ov", attention(heads, kv_groups, width, biases, "half"), "any"))
    return tuple(cases)


CASES = _grid()
# One of each group of transformations, for what needs no more.
GROUPS = {name: Group(QK_SIZE, rotary, style) for name, (rotary, style) in POSITIONS.items()}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_roles(facts: Attention, seed: int = 0) -> dict[str, Tensor]:
    """Random weights for both circuits, float64, of a size at which the softmax is neither flat nor saturated.

    Inputs of order 1 give queries, keys and scores of order 1; biases are half as large, so they all count.
    """
    H, G, E = facts.heads, facts.kv_groups, facts.embedding
    shapes = {
        "W_Q": (H, facts.qk_size, E),
        "W_K": (G, facts.qk_size, E),
        "W_V": (G, facts.v_size, E),
        "W_O": (H, facts.v_size, E),
    }
    if facts.q_bias:
        shapes["b_Q"] = (H, facts.qk_size)
    if facts.k_bias:
        shapes["b_K"] = (G, facts.qk_size)
    if facts.v_bias:
        shapes["b_V"] = (G, facts.v_size)
    roles = {}
    for number, (role, shape) in enumerate(shapes.items()):
        scale = E**-0.5 if role.startswith("W") else 0.5
        roles[role] = scale * normal(facts.layers, *shape, seed=100 * seed + number)
    return roles
