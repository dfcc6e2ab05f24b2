"""Every tensor of an architecture, by role and shape.

Parameter counts are sums over this list, and a twin is built from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from identcli.architecture.description import Architecture, Audio, Block, Mlp, Norm, Patches, Stack, Tokens
from identcli.architecture.pairs import Attention

Part = Literal["embedding", "attention", "other"]


@dataclass(frozen=True)
class Tensor:
    """copies × shape, one copy a layer; part: what it is counted as; of its numbers a token uses the share
    `active`.

    `frozen` tensors are stored and counted but not trained. Weights are (rows out, columns in), experts come
    first.
    """

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    part: Part = "other"
    active: float = 1.0
    frozen: bool = False

    @property
    def size(self) -> int:
        return self.copies * prod(self.shape)


@dataclass(frozen=True)
class Parameters:
    """Sums over the tensors. total counts a tied head once; without_embeddings leaves out the tables and the head."""

    total: int
    without_embeddings: int
    attention: int
    attention_weights: int
    active: int
    tied: bool
    stored_twice: int

    def __post_init__(self) -> None:
        assert self.attention <= self.without_embeddings <= self.total


def tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """All tensors. A tied head adds none."""
    width = architecture.width
    found = [tensor for stack in architecture.stacks for tensor in _stack(architecture, stack)]
    if architecture.head:
        rows = architecture.vocab
        if not architecture.head.tied:
            found.append(Tensor("head.W", (rows, width), part="embedding"))
        if architecture.head.bias:
            found.append(Tensor("head.b", (rows,), part="embedding"))
    if architecture.pooler:
        found += [Tensor("pooler.W", (width, width)), Tensor("pooler.b", (width,))]
    return tuple(found)


def parameters(architecture: Architecture) -> Parameters:
    """How many numbers the tensors hold, and which."""
    found = tensors(architecture)
    embeddings = sum(t.size for t in found if t.part == "embedding")
    attention = [t for t in found if t.part == "attention"]
    total = sum(t.size for t in found)
    return Parameters(
        total=total,
        without_embeddings=total - embeddings,
        attention=sum(t.size for t in attention),
        attention_weights=sum(t.size for t in attention if len(t.shape) > 1),
        active=total - sum(round(t.size * (1 - t.active)) for t in found),
        tied=architecture.tied,
        stored_twice=architecture.vocab * architecture.width if architecture.tied else 0,
    )


def _stack(architecture: Architecture, stack: Stack) -> Iterator[Tensor]:
    yield from _inputs(architecture, stack)
    width, name = architecture.width, stack.name
    if stack.embedding_norm:
        yield from _norm(f"{name}.embedding_norm", stack.embedding_norm, width)
    if stack.relative_buckets:
        yield Tensor(f"{name}.relative_bias", (stack.relative_buckets, stack.blocks[0].attention.heads))
    for index, block in enumerate(stack.blocks):
        yield from _block(f"{name}.{index}", block)
    if stack.final_norm:
        yield from _norm(f"{name}.final_norm", stack.final_norm, width)


def _inputs(architecture: Architecture, stack: Stack) -> Iterator[Tensor]:
    width, name, inputs = architecture.width, stack.name, stack.inputs
    if isinstance(inputs, Tokens):
        if stack is architecture.stack or not architecture.shared_table:
            yield Tensor(f"{name}.tokens", (inputs.vocab, width), part="embedding")
        if inputs.positions:
            yield Tensor(f"{name}.positions", (inputs.positions + inputs.unread, width), part="embedding")
        if inputs.types:
            yield Tensor(f"{name}.types", (inputs.types, width), part="embedding")
    elif isinstance(inputs, Patches):
        yield Tensor(f"{name}.patches.W", (width, inputs.pixels), part="embedding")
        yield Tensor(f"{name}.patches.b", (width,), part="embedding")
        yield Tensor(f"{name}.class_token", (1, width), part="embedding")
        yield Tensor(f"{name}.positions", (inputs.count + 1, width), part="embedding")
    elif isinstance(inputs, Audio):
        yield Tensor(f"{name}.conv_1.W", (width, inputs.channels, 3))
        yield Tensor(f"{name}.conv_1.b", (width,))
        yield Tensor(f"{name}.conv_2.W", (width, width, 3))
        yield Tensor(f"{name}.conv_2.b", (width,))
        yield Tensor(f"{name}.sinusoids", (inputs.positions, width), part="embedding", frozen=True)


def _norm(name: str, norm: Norm, width: int, layers: int = 1) -> Iterator[Tensor]:
    if norm.gain:
        yield Tensor(f"{name}.gain", (width,), layers)
    if norm.bias:
        yield Tensor(f"{name}.bias", (width,), layers)


def _block(name: str, block: Block) -> Iterator[Tensor]:
    layers, width = block.attention.layers, block.attention.embedding
    for index in range(block.norms):
        yield from _norm(f"{name}.norm_{index}", block.norm, width, layers)
    yield from _latent(name, block) if block.latent else _attention(f"{name}.self", block.attention)
    if block.cross:
        yield from _attention(f"{name}.cross", block.cross)
    if block.sinks:
        yield Tensor(f"{name}.self.sinks", (block.attention.heads,), layers, part="attention")
    if block.qk_norm and block.qk_norm.gain:
        each = block.qk_norm.over == "head"
        a = block.attention
        yield Tensor(f"{name}.self.q_gain", (a.qk_size if each else a.heads * a.qk_size,), layers)
        yield Tensor(f"{name}.self.k_gain", (a.qk_size if each else a.kv_groups * a.qk_size,), layers)
    yield from _mlp(f"{name}.mlp", block.mlp, width, layers)


def _attention(name: str, a: Attention) -> Iterator[Tensor]:
    shapes = {
        "Q": (a.heads * a.qk_size, a.embedding, a.q_bias),
        "K": (a.kv_groups * a.qk_size, a.embedding, a.k_bias),
        "V": (a.kv_groups * a.v_size, a.embedding, a.v_bias),
        "O": (a.embedding, a.heads * a.v_size, a.o_bias),
    }
    for letter, (rows, columns, bias) in shapes.items():
        yield Tensor(f"{name}.W_{letter}", (rows, columns), a.layers, part="attention")
        if bias:
            yield Tensor(f"{name}.b_{letter}", (rows,), a.layers, part="attention")


def _latent(name: str, block: Block) -> Iterator[Tensor]:
    a, latent = block.attention, block.latent
    assert latent is not None
    shapes = {
        "W_UQ": (a.heads * a.qk_size, latent.q or a.embedding),
        "W_DKV": (latent.kv, a.embedding),
        "W_KR": (a.rotary, a.embedding),
        "W_UK": (a.heads * latent.plain, latent.kv),
        "W_UV": (a.heads * a.v_size, latent.kv),
        "W_O": (a.embedding, a.heads * a.v_size),
    }
    if latent.q:
        shapes["W_DQ"] = (latent.q, a.embedding)
    for letter, shape in shapes.items():
        yield Tensor(f"{name}.self.{letter}", shape, a.layers, part="attention")
    if latent.norms:
        yield Tensor(f"{name}.self.kv_gain", (latent.kv,), a.layers)
        if latent.q:
            yield Tensor(f"{name}.self.q_gain", (latent.q,), a.layers)


def _mlp(name: str, mlp: Mlp, width: int, layers: int) -> Iterator[Tensor]:
    if not mlp.experts:
        yield from _branch(name, mlp, width, layers, mlp.width)
        return
    experts = mlp.experts
    yield Tensor(f"{name}.router.W", (experts.number, width), layers)
    if experts.router_bias:
        yield Tensor(f"{name}.router.b", (experts.number,), layers)
    for t in _branch(f"{name}.experts", mlp, width, layers, experts.width):
        yield Tensor(t.name, (experts.number, *t.shape), layers, active=experts.active / experts.number)
    if experts.shared:
        yield from _branch(f"{name}.shared", mlp, width, layers, experts.shared)


def _branch(name: str, mlp: Mlp, width: int, layers: int, units: int) -> Iterator[Tensor]:
    for letter in ("gate", "up") if mlp.gated else ("up",):
        yield Tensor(f"{name}.W_{letter}", (units, width), layers)
        if mlp.up_bias:
            yield Tensor(f"{name}.b_{letter}", (units,), layers)
    yield Tensor(f"{name}.W_down", (width, units), layers)
    if mlp.down_bias:
        yield Tensor(f"{name}.b_down", (width,), layers)
