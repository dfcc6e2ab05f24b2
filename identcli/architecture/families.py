"""The families of transformations that leave a model the same, with their groups and dimensions.

`families` reads the description of an architecture and nothing else. The dimensions are those of the paper's
invariances and of all further continuous ones, at generic weights and for enough inputs; each is the number
of parameters that no output identifies (functional dimension: parameters − rank of the Jacobian). The shrunk
twins hold every one of them against a numerical rank.

The reasoning behind the rules, in the words used below:

A *reader* is a linear map behind a norm. A LayerNorm hands it vectors orthogonal to 1, so each of its rows
has one direction that is never read; with an offset in the norm that direction acts as a bias instead. A
*writer* adds to the residual stream. Where every norm that reads the stream takes its mean out, the part
that a writer writes along 1 is never read. Two constants that are added at the same place (a value bias
behind softmax rows that sum to 1 and an output bias; the output biases of parallel branches; token and
position tables) can be traded against each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from identcli.architecture.description import (
    Architecture,
    Block,
    Mlp,
    Norm,
    Patches,
    Stack,
    Tokens,
)
from identcli.architecture.errors import UserError
from identcli.architecture.formula import Formula
from identcli.architecture.pairs import Attention
from identcli.architecture.small_vocabulary import small_vocabulary

Outputs = Literal["log_probs", "logits"]

# What each family is called by, in the order of a table. The first two are the paper's.
NAMES: dict[str, str] = {
    "qk": "query-key products",
    "ov": "output-value products",
    "key_bias": "key biases",
    "value_bias": "value biases against output biases",
    "qk_norm_gains": "gains of the norms on queries and keys",
    "qk_norm_scales": "scales in front of the norms on queries and keys",
    "mla_latent": "latents between down- and up-projections",
    "norm_gains": "gains of norms against their readers",
    "norm_offsets": "offsets of norms against later or earlier biases",
    "ones_direction": "ones-direction in the readers of LayerNorms",
    "output_means": "means of what is written to a centred stream",
    "bias_trade": "output biases of parallel branches",
    "mlp_scales": "scales of hidden units",
    "router_shift": "common shift of router logits",
    "branch_scales": "scales in front of norms on branch outputs",
    "relative_bias": "common shift of a head's relative score biases",
    "token_means": "means of the token embeddings",
    "position_means": "means of position and type embeddings",
    "table_trade": "token against position and type tables",
    "unread_positions": "rows of the position table that no input reaches",
    "residual_rotation": "rotation of the residual stream",
    "residual_scale": "scale of the residual stream",
    "final_gain": "gain of the final norm against the head",
    "final_offset": "offset of the final norm against the head",
    "head_ones": "ones-direction in the head",
    "head_shift": "common shift of all logits",
    "small_vocabulary": "rotations and trades that few tokens don't fix",
    "unseen_directions": "directions that no input of the first layer has",
}


@dataclass(frozen=True)
class Family:
    """`layers` × `formula` dimensions, moved by `group` (in words), at `place`: a run of layers or the whole
    model.

    `only_at_least`: the dimension is a proven lower bound and not the whole count.
    """

    name: str
    place: str
    group: str
    formula: Formula
    layers: int = 1
    per_layer: bool = False
    only_at_least: bool = False

    @property
    def title(self) -> str:
        return NAMES[self.name]

    @property
    def each(self) -> int:
        """Dimension at one layer, or of the one place that it has."""
        return self.formula.value

    @property
    def dimension(self) -> int:
        return self.layers * self.each


def families(architecture: Architecture, outputs: Outputs = "log_probs", eps: bool = True) -> tuple[Family, ...]:
    """All families of an architecture, per layer ones first; those of dimension 0 are left out.

    outputs: whether a shift of all logits counts as the same output (log_probs) or not. Without a head the
    outputs are hidden states and it makes no difference. eps: whether norms have ε > 0, which pins down
    every scale in front of them; with eps=False those scales are free as well.
    """
    if outputs not in ("log_probs", "logits"):
        raise UserError(f"outputs {outputs!r}: must be 'log_probs' or 'logits'")
    found = [f for stack in architecture.stacks for f in _stack(architecture, stack, eps)]
    found += _ends(architecture, outputs, eps)
    replaced = small_vocabulary(architecture, outputs, eps)
    if replaced:
        found = [f for f in found if f.name not in replaced.instead_of]
        found += [Family(t.name, "model", t.group, t.formula, only_at_least=t.only_at_least) for t in replaced.terms]
    order = list(NAMES)
    kept = [f for f in found if f.dimension]
    places = list(dict.fromkeys(f.place for f in kept if f.per_layer))
    return tuple(
        sorted(kept, key=lambda f: (places.index(f.place) if f.per_layer else len(places), order.index(f.name)))
    )


# --- one run of equal layers
# ------------------------------------------------------------------------------------


def _stack(architecture: Architecture, stack: Stack, eps: bool) -> Iterator[Family]:
    start = 0
    for block in stack.blocks:
        layers = block.attention.layers
        place = f"{stack.name} layer {start}" if layers == 1 else f"{stack.name} layers {start}-{start + layers - 1}"
        start += layers
        source = architecture.stacks[0].final_norm if block.cross else None
        for name, group, text in _block(stack, block, source, eps):
            letters = _letters(block)
            yield Family(name, place, group, Formula(text, letters), layers, per_layer=True)
    if stack.relative_buckets:
        letters = {"H": stack.blocks[0].attention.heads}
        yield Family("relative_bias", stack.name, "a shift per head, by softmax", Formula("H", letters))


Found = Iterator[tuple[str, str, str]]


def _block(stack: Stack, block: Block, source: Norm | None, eps: bool) -> Found:
    """(name, group in words, formula) of each family of one layer."""
    sees = _sees(block)
    # An offset in the norm does what a bias does, through the row's ones-direction.
    offset = block.norm.bias and block.placement != "output"
    if block.latent:
        yield from _latent(block, eps)
    else:
        yield from _attention(block, block.attention, sees, sees, offset, offset, stack.centred, eps)
    if block.cross:
        memory = "(E - 1)" if source and source.centred else "E"
        given = source is not None and source.bias
        yield from _attention(block, block.cross, sees, memory, offset, given, stack.centred, eps)
    if block.mlp.scalable:
        kind = "ReLU" if block.mlp.activation == "relu" else "up against down"
        yield "mlp_scales", f"positive scales, one a hidden unit ({kind})", _units(block.mlp)
    experts = block.mlp.experts
    if experts and experts.router == "softmax":
        extra = " + 1" if experts.router_bias else ""
        yield "router_shift", "the same vector added to every expert's router row, by softmax", sees + extra
    yield from _norm_families(block)
    yield from _writers(stack, block)
    if not eps and block.placement in ("output", "sandwich"):
        yield "branch_scales", "a scale in front of each norm", f"{2 + bool(block.cross)}"


def _sees(block: Block) -> str:
    """Dimensions of the space in which a reader's inputs lie."""
    return "(E - 1)" if block.norm.centred and block.placement != "output" else "E"


def _attention(
    block: Block, a: Attention, sees: str, memory: str, offset: bool, memory_offset: bool, centred: bool, eps: bool
) -> Found:
    """Families of one attention layer whose queries see `sees` dimensions and keys and values `memory` ones."""
    width = {"(E - 1)": a.embedding - 1, "E": a.embedding}
    bias_q, bias_k, bias_v = a.q_bias or offset, a.k_bias or memory_offset, a.v_bias or memory_offset
    qk, ov = a.pair("qk").group, a.pair("ov").group
    rows_sum_to_one = not block.sinks
    if block.qk_norm:
        each = "H + G" if block.qk_norm.over == "head" else "2"
        if not eps:
            yield "qk_norm_scales", "positive scales in front of the norms", each
        free = "(R//2 + D - R)"
        if block.qk_norm.gain:
            many = free if block.qk_norm.over == "head" else f"G*{free}"
            yield "qk_norm_gains", "query gain times t, key gain over t, equal on a rotated pair", many
        else:
            yield "qk", "orthogonal maps that commute with the rotations", "G*(R//2 + (D - R)*(D - R - 1)//2)"
    elif a.rotary:
        yield "qk", f"{qk} per kv group", "G*D" if a.rotary == a.qk_size else "G*(R + (D - R)**2)"
    else:
        columns = f"m*{sees} + m" if bias_q else f"m*{sees}"
        yield from _product_families("qk", "D", str(qk), a.qk_size, columns, memory, min(width[memory], width[sees]), a)
    if bias_k and not (block.qk_norm or block.sinks or block.softcap) and a.rotary < a.qk_size:
        yield "key_bias", "a shift of the keys, by softmax", "G*(D - R)" if a.rotary else "G*D"
    yield from _product_families("ov", "C", str(ov), a.v_size, memory, f"m*{sees}", width[memory], a)
    if bias_v and rows_sum_to_one:
        # Attention rows sum to 1, so a value bias is one constant on the stream, and another one can take it
        # up.
        absorbs = a.o_bias or (block.parallel != "no" and block.mlp.down_bias and not block.mlp.experts)
        lost = "G*C" if absorbs else f"G*C - min({'E - 1' if centred else 'E'}, G*C)"
        yield "value_bias", "value biases against a constant on the stream", lost


def _product_families(name: str, size: str, group: str, rows: int, a: str, b: str, fits: int, at: Attention) -> Found:
    """The families of a product BᵀA of inner size D or C without rotations, `a` and `b` columns wide.

    While the inner size fits into what is read (`fits`), GL acts freely: its dimension is the square of the size.
    Above, GL has a stabiliser and the rows that are never read add more (theory 5). A head as wide as the stream, one
    more than a LayerNorm lets through, is the paper's H = 1: its square is counted here, and what it shares with the
    ones-direction is taken off there.
    """
    square = f"G*{size}**2"
    rank = f"min({size}, {b if size == 'D' else a})"
    whole = f"G*({size}*({a} + {b}) - {rank}*({a} + {b} - {rank}))"
    if rows <= at.embedding:
        yield name, f"{group} per kv group", square
    else:
        yield name, f"{group} per kv group, and what wide heads leave unread", whole
    if fits < rows <= at.embedding:
        yield (
            "ones_direction",
            f"counted above among the {'query-key' if name == 'qk' else 'value'} products",
            f"{whole} - {square}",
        )


def _latent(block: Block, eps: bool) -> Found:
    """DeepSeek's attention (theory 10): its pairs act on the unrotated rows; one map serves the shared rotary key."""
    latent = block.latent
    assert latent is not None
    yield "qk", "GL(N) per head, one set of scaled rotations for all heads", "H*N**2 + R"
    yield "ov", f"GL({block.attention.v_size}) per head", "H*C**2"
    ranks = ["q", "p"] if latent.q else ["p"]
    if latent.norms:
        yield "mla_latent", "O(rank) and gains", " + ".join(f"{r}*({r} + 1)//2" for r in ranks)
        if not eps:
            yield "qk_norm_scales", "a scale in front of each latent norm", f"{len(ranks)}"
    else:
        yield "mla_latent", "GL(rank)", " + ".join(f"{r}**2" for r in ranks)


# --- norms, and what reads and writes the stream
# ------------------------------------------------------------------


def _units(mlp: Mlp) -> str:
    if not mlp.experts:
        return "F"
    return "n*F + S" if mlp.experts.shared else "n*F"


def _readers(block: Block) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """(rows, has a bias) of the maps that read the stream for the attention, and for the MLP."""
    a = block.attention
    if block.latent:
        first = "q" if block.latent.q else "H*D"
        attention = [(first, False), ("p", False), ("R", False)]
    else:
        attention = [("H*D", a.q_bias), ("G*D", a.k_bias), ("G*C", a.v_bias)]
    units = _units(block.mlp)
    mlp = [(units, block.mlp.up_bias)] * (2 if block.mlp.gated else 1)
    if block.mlp.experts:
        mlp.append(("n", block.mlp.experts.router_bias))
    return attention, mlp


def ones(norm: Norm, readers: Sequence[tuple[str, bool]]) -> list[str]:
    """Rows whose ones-direction is free. Without a bias of its own a row uses it to take up the norm's offset."""
    if not norm.centred:
        return []
    return [rows for rows, bias in readers if bias or not norm.bias]


def _norm_families(block: Block) -> Found:
    attention, mlp = _readers(block)
    readers = attention + mlp
    count = block.norms
    if block.cross:
        readers = [*readers, ("H*D", block.cross.q_bias)]
    if block.placement in ("pre", "sandwich"):
        count = count // 2 if block.placement == "sandwich" else count
        if block.norm.gain:
            yield "norm_gains", "a scale per dimension, undone by the readers", f"{count}*E"
        if block.norm.bias:
            yield "norm_offsets", "a shift, undone by the readers' biases", f"{count}*E"
    if block.placement != "output":
        free = ones(block.norm, readers)
        if free:
            yield "ones_direction", "a multiple of 1/gain added to each row", " + ".join(free)


def _writers(stack: Stack, block: Block) -> Found:
    """Output maps and biases: their means on a centred stream, and the trade between parallel branches."""
    a, mlp = block.attention, block.mlp
    one_bias_each = block.parallel != "no" and a.o_bias and mlp.down_bias and not mlp.experts
    if stack.centred:
        columns = ["H*C"] * (2 if block.cross else 1) + [_units(mlp)]
        biases = a.o_bias + (block.cross.o_bias if block.cross else 0)
        text = " + ".join(columns)
        if mlp.down_bias and mlp.experts:
            text += " + n + 1" if mlp.experts.shared else " + n"
        elif mlp.down_bias:
            biases += 1
        yield "output_means", "anything added along 1", f"{text} + {biases}" if biases else text
    if one_bias_each:
        yield "bias_trade", "one output bias against the other", "E - 1" if stack.centred else "E"


def _letters(block: Block) -> dict[str, int]:
    a, experts, latent = block.attention, block.mlp.experts, block.latent
    return {
        "H": a.heads,
        "G": a.kv_groups,
        "m": a.heads // a.kv_groups,
        "E": a.embedding,
        "D": a.qk_size,
        "C": a.v_size,
        "R": a.rotary,
        "F": experts.width if experts else block.mlp.width,
        "n": experts.number if experts else 0,
        "S": experts.shared if experts else 0,
        "N": latent.plain if latent else 0,
        "q": latent.q if latent else 0,
        "p": latent.kv if latent else 0,
    }


# --- the ends of the stream
# ---------------------------------------------------------------------------------------


def _ends(architecture: Architecture, outputs: Outputs, eps: bool) -> Iterator[Family]:
    for stack in architecture.stacks:
        for name, group, text in _inputs(architecture, stack, outputs):
            inputs = stack.inputs
            letters = {"E": architecture.width, "L": stack.layers}
            if isinstance(inputs, Tokens):
                letters |= {"V": inputs.vocab, "T": inputs.positions, "U": inputs.unread, "S": inputs.types}
            elif isinstance(inputs, Patches):
                letters |= {"T": inputs.count + 1, "P": inputs.pixels}
            yield Family(name, f"{stack.name} input", group, Formula(text, letters))
        for name, group, text in _post_norm_trades(stack):
            letters = {"E": architecture.width, "L": stack.layers}
            yield Family(name, f"{stack.name}, between layers", group, Formula(text, letters))
    letters = {"E": architecture.width, "V": architecture.vocab}
    for name, group, text in _outputs(architecture, outputs):
        yield Family(name, "output", group, Formula(text, letters))
    for name, group, text in _memory(architecture):
        blocks = architecture.stack.blocks
        letters = _letters(blocks[0]) | {"L": architecture.stack.layers}
        yield Family(name, "encoder output", group, Formula(text, letters))
    if not eps:
        for stack in architecture.stacks:
            scales = _stream_scales(architecture, stack)
            if scales:
                formula = Formula(scales, {"L": stack.layers})
                yield Family("residual_scale", stack.name, "positive scales, exact at ε = 0", formula)


def _inputs(architecture: Architecture, stack: Stack, outputs: Outputs) -> Found:
    """Tables at the input. Their means vanish in a centred stream; tables that are added can be traded."""
    inputs, head, norm = stack.inputs, architecture.head, stack.embedding_norm
    centred = norm.centred if norm else stack.centred
    spare = "E - 1" if centred else "E"
    if norm and norm.bias and stack.centred and stack.blocks[0].placement == "pre":
        yield "output_means", "the embedding norm's offset along 1", "1"
    if isinstance(inputs, Patches):
        if centred:
            yield "position_means", "anything added along 1", "P + 1 + 1 + T"
        yield "table_trade", "class token or patch bias against positions", f"2*({spare})"
    if not isinstance(inputs, Tokens):
        return
    others = bool(inputs.positions) + bool(inputs.types)
    if centred and others:
        yield "position_means", "anything added along 1", "T + S" if inputs.types else "T"
    if others == 2:
        yield "table_trade", "types against positions", spare
    if inputs.unread:
        yield "unread_positions", "anything: these rows have no effect", "U*E"
    if not architecture.tied:
        if centred:
            yield "token_means", "anything added along 1", "V"
        if others:
            yield "table_trade", "a vector moved from the tokens to the positions", spare
        return
    assert head is not None
    words = "a vector moved from the tokens to the positions; it shifts all logits alike"
    if outputs == "log_probs" and not head.softcap:
        if others:
            yield "table_trade", words, "E"
        elif centred:
            yield "table_trade", "a multiple of 1 added to every token: a shift of all logits", "1"
    elif others and centred and stack.final_norm and not stack.final_norm.bias:
        yield "table_trade", "a multiple of 1/gain moved from the tokens to the positions", "1"


def _post_norm_trades(stack: Stack) -> Found:
    """Behind a post-norm the stream is gain∘n + offset, and the next output bias can take the offset up.

    The last norm is read by no further sum, the embedding norm is: 2L trades in all.
    """
    block = stack.blocks[0]
    if block.placement == "post" and block.norm.bias:
        text = "2*L*E" if block.attention.o_bias and block.mlp.down_bias else "2*L"
        yield "norm_offsets", "a shift, undone by the readers and the next output bias", text


def _outputs(architecture: Architecture, outputs: Outputs) -> Found:
    """The final norm and an untied head. A tied head is fixed by the tokens, hidden states fix the norm."""
    stack, head = architecture.stack, architecture.head
    norm = stack.final_norm
    if architecture.pooler and ones(norm or stack.blocks[-1].norm, [("E", True)]):
        yield "head_ones", "a multiple of 1/gain added to each row of the pooler", "E"
    if head is None or head.tied:
        return
    if norm and norm.gain:
        yield "final_gain", "a scale per dimension, undone by the head", "E"
    if norm and norm.bias:
        yield "final_offset", "a shift, undone by the head's bias", "E"
    if norm and ones(norm, [("V", head.bias)]):
        yield "head_ones", "a multiple of 1/gain added to each row", "V"
    if outputs == "log_probs" and not head.softcap:
        size = "E - 1" if norm and norm.centred else "E"
        constant = head.bias or (norm is not None and norm.bias)
        yield "head_shift", "the same affine function added to all logits", f"{size} + 1" if constant else size
    if _rotates(architecture):
        size = "(E - 1)*(E - 2)//2" if stack.centred else "E*(E - 1)//2"
        group = "O(E - 1), the rotations that fix 1" if stack.centred else "O(E)"
        yield "residual_rotation", group, size


def _rotates(architecture: Architecture) -> bool:
    """Whether the stream can be turned: all that writes and reads it is linear, and every gain can be taken up."""
    stacks = architecture.stacks if architecture.shared_table else architecture.stacks[-1:]
    return all(
        isinstance(stack.inputs, Tokens)
        and stack.embedding_norm is None
        and all(block.placement == "pre" for block in stack.blocks)
        for stack in stacks
    )


def _memory(architecture: Architecture) -> Found:
    """The encoder's final norm, whose readers are the keys and values of every decoder layer."""
    if len(architecture.stacks) < 2:
        return
    norm, cross = architecture.stacks[0].final_norm, architecture.stack.blocks[0].cross
    if norm is None or cross is None:
        return
    if norm.gain:
        yield "norm_gains", "a scale per dimension, undone by the readers", "E"
    if norm.bias:
        yield "norm_offsets", "a shift, undone by the readers' biases", "E"
    free = ones(norm, [("G*D", cross.k_bias), ("G*C", cross.v_bias)])
    if free:
        yield "ones_direction", "a multiple of 1/gain added to each row", f"L*({' + '.join(free)})"


def _stream_scales(architecture: Architecture, stack: Stack) -> str:
    """Scales that only ε > 0 fixes: one per stream that starts from free tables, one per post-norm that feeds a sum."""
    if not isinstance(stack.inputs, Tokens | Patches):
        return ""
    if architecture.shared_table and stack is not architecture.stack:
        return ""
    if stack.blocks[0].placement == "post":
        return "2*L + 1"
    return "2" if stack.embedding_norm else "1"
