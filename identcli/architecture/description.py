"""One frozen description of an architecture. Its tensors, its families and its shrunk twin all follow from
it.

A model is one stack of blocks (two for an encoder and a decoder) between an input and, mostly, an output
head. Every block adds an attention layer and an MLP to the residual stream of width E.

Letters, for one layer unless said otherwise: L layers, H heads, G kv groups, E width of the stream, D
query-key head size, C value head size, R rotated rows of a head, F width of the MLP, V rows of the token
table, T rows of the position table, n experts, k of them active.
"""

from dataclasses import dataclass
from typing import Literal

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention

Placement = Literal["pre", "post", "output", "sandwich"]
Parallel = Literal["no", "one norm", "two norms"]
Activation = Literal["gelu", "silu", "relu", "clamped"]


@dataclass(frozen=True)
class Norm:
    """`layer`: (x − mean)/std, then gain and perhaps an offset. `rms`: x/rms, then the gain. ε is in the root."""

    kind: Literal["layer", "rms"]
    gain: bool = True
    bias: bool = False

    @property
    def centred(self) -> bool:
        """Whether the mean is taken out, so that what is read is orthogonal to the ones-direction (theory 9)."""
        return self.kind == "layer"


@dataclass(frozen=True)
class QKNorm:
    """RMSNorm on queries and keys: over each head with one gain for all, or over all heads together (`concat`)."""

    over: Literal["head", "concat"]
    gain: bool = True


@dataclass(frozen=True)
class Latent:
    """DeepSeek's multi-head latent attention: queries of rank `q` (0: no latent), keys and values of rank
    `kv`.

    Of the D rows of a head the first `plain` come from the latents, the other R are rotated and share one
    key.
    """

    q: int
    kv: int
    plain: int
    norms: bool = True


@dataclass(frozen=True)
class Experts:
    """n experts of `width` each, of which a router picks `active` per token; `shared`: width of what is
    always on.

    router: weights by a softmax (over all, or over the chosen: the same up to a shift of the logits), or by
    a sigmoid.
    """

    number: int
    active: int
    width: int
    shared: int = 0
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False


@dataclass(frozen=True)
class Mlp:
    """down(act(up x)), or with a gate down(act(gate x) ∘ up x). `clamped`: gpt-oss's gate, (up + 1) and limits of 7."""

    width: int
    activation: Activation
    gated: bool = False
    up_bias: bool = False
    down_bias: bool = False
    experts: Experts | None = None

    @property
    def scalable(self) -> bool:
        """Whether a hidden unit can be scaled before and back after: ReLU is homogeneous, a gated `up` linear."""
        return self.activation == "relu" or (self.gated and self.activation != "clamped")

    @property
    def units(self) -> int:
        """Hidden units of the layer, those of all experts together."""
        return self.experts.number * self.experts.width + self.experts.shared if self.experts else self.width


@dataclass(frozen=True)
class Block:
    """`attention.layers` equal layers.

    placement of the norms: `pre` before each branch, `post` after each sum (BERT), `output` on what a branch
    adds (OLMo 2), `sandwich` before the branch and on what it adds (Gemma 3). parallel: attention and MLP
    read the same stream and are added together. cross: a second attention that takes keys and values from
    the encoder.
    """

    attention: Attention
    mlp: Mlp
    norm: Norm
    placement: Placement = "pre"
    parallel: Parallel = "no"
    qk_norm: QKNorm | None = None
    latent: Latent | None = None
    cross: Attention | None = None
    sinks: bool = False
    softcap: bool = False

    def __post_init__(self) -> None:
        width = self.attention.embedding
        if self.qk_norm and self.attention.qk_size > width:
            size = self.attention.qk_size
            raise UserError(f"head size {size} above the width {width} with a QK-norm: not examined")
        if self.qk_norm and self.qk_norm.over == "concat" and not self.attention.rotary:
            joint = self.attention.heads * self.attention.qk_size
            if joint > width:
                raise UserError(f"a QK-norm over {joint} = heads x head size above the width {width}: not examined")
        if self.mlp.experts and not 1 <= self.mlp.experts.active <= self.mlp.experts.number:
            raise UserError(f"{self.mlp.experts.active} active experts of {self.mlp.experts.number}")

    @property
    def norms(self) -> int:
        """Norms of width E in one layer."""
        branches = 2 + (self.cross is not None)
        if self.placement == "sandwich":
            return 2 * branches
        return branches - (self.parallel == "one norm")


@dataclass(frozen=True)
class Tokens:
    """A table of V rows, perhaps T learned positions (and `unread` more that no input reaches) and token types."""

    vocab: int
    positions: int = 0
    unread: int = 0
    types: int = 0


@dataclass(frozen=True)
class Patches:
    """Image patches of `pixels` numbers through one linear map with bias, a class token, learned positions of both."""

    pixels: int
    count: int


@dataclass(frozen=True)
class Audio:
    """`channels` per frame through two convolutions of three frames with GELU; `positions` fixed sinusoids, stored."""

    channels: int
    positions: int


@dataclass(frozen=True)
class Stack:
    """Blocks behind an input. alibi: fixed slopes on the scores; relative_buckets: rows of a learned score bias."""

    name: str
    inputs: Tokens | Patches | Audio
    blocks: tuple[Block, ...]
    causal: bool = True
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    alibi: bool = False
    relative_buckets: int = 0

    @property
    def layers(self) -> int:
        return sum(block.attention.layers for block in self.blocks)

    @property
    def centred(self) -> bool:
        """Whether everything that reads the stream takes its mean out, so that nobody sees what is written along 1."""
        if any(block.placement in ("output", "sandwich") for block in self.blocks):
            return False
        read_by = [block.norm for block in self.blocks]
        if self.blocks[0].placement == "pre" and self.final_norm:
            read_by.append(self.final_norm)
        return all(norm.centred for norm in read_by)


@dataclass(frozen=True)
class Head:
    """The map from the stream to V logits; tied: the token table itself. softcap: logits pass through c·tanh(·/c)."""

    tied: bool
    bias: bool = False
    softcap: bool = False


@dataclass(frozen=True)
class Architecture:
    """stacks: one, or an encoder and the decoder that reads it. Without a head the outputs are the last
    hidden states.

    pooler: a square layer with bias and tanh on the first position, as BERT and ViT have it.
    shared_table: the encoder reads the decoder's token table (T5).
    notes: what the reader of a config should be told.
    """

    name: str
    stacks: tuple[Stack, ...]
    head: Head | None = None
    pooler: bool = False
    shared_table: bool = False
    notes: tuple[str, ...] = ()

    @property
    def stack(self) -> Stack:
        """The stack that makes the outputs."""
        return self.stacks[-1]

    @property
    def width(self) -> int:
        """E."""
        return self.stack.blocks[0].attention.embedding

    @property
    def tied(self) -> bool:
        return self.head is not None and self.head.tied

    @property
    def vocab(self) -> int:
        """V, 0 for a model without tokens."""
        inputs = self.stack.inputs
        return inputs.vocab if isinstance(inputs, Tokens) else 0
