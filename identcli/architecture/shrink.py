"""The twin of an architecture: as small as its families allow, with the same structure.

Kept: the order of all parts, norms, biases, tied or not, query heads per kv group (up to 8), the rotated share of a
head, latents, experts, sinks. Shrunk: widths, head sizes, the number of kv groups (to 2), layers (to 2 of one kind,
1 of several or with many heads), tokens and positions. Heads stay narrower than the stream, and tokens so many that
a first layer can't learn them by heart, as in all published models, so that the same formulas hold.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Literal

from identcli.architecture.description import Architecture, Audio, Block, Experts, Latent, Mlp, Patches, Stack, Tokens
from identcli.architecture.pairs import Attention
from identcli.architecture.tensors import parameters

LENGTH = 5
UNITS = 5
MOST_IN_A_VALUE = 4
# The Jacobian of more takes longer than a check should: its cost grows with the cube of the parameters.
MOST_IN_W_Q = 320
MOST_IN_TWO_LAYERS = 1400


def shrink(architecture: Architecture) -> Architecture:
    """A description of the same kind with some hundred parameters."""
    width = max(_width(block) for stack in architecture.stacks for block in stack.blocks)
    width = 10 if _few_tokens(architecture) == "unseen" else width
    single = len(architecture.stacks) == 1 and len(architecture.stack.blocks) == 1
    two = _twin(architecture, width, layers=2)
    return two if single and parameters(two).total <= MOST_IN_TWO_LAYERS else _twin(architecture, width, layers=1)


def _twin(architecture: Architecture, width: int, layers: int) -> Architecture:
    tokens, positions = _tokens(architecture, width)
    stacks = tuple(_stack(stack, width, layers, tokens, positions) for stack in architecture.stacks)
    return replace(architecture, name=f"twin of {architecture.name}", stacks=stacks, notes=())


def _few_tokens(architecture: Architecture) -> Literal["no", "few", "unseen"]:
    """Whether a GPT's tied head has fewer tokens than the stream is wide, and whether layer 0's inputs span it."""
    inputs, real = architecture.stack.inputs, architecture.width
    if not isinstance(inputs, Tokens) or not architecture.tied or not inputs.positions or inputs.vocab >= real:
        return "no"
    return "unseen" if inputs.vocab + inputs.positions < real else "few"


def _tokens(architecture: Architecture, width: int) -> tuple[int, int]:
    """Tokens and positions of the twin: V stays below E where it is, and V + T below E where that is."""
    few = _few_tokens(architecture)
    if few == "no":
        # In parallel branches the first MLP sees bare tokens: few of them it could learn by heart.
        parallel = any(block.parallel != "no" for block in architecture.stack.blocks)
        return width + (4 if parallel else 2) * UNITS + 3, LENGTH
    return (4, 4) if few == "unseen" else (3, width + 1)


def length(twin: Architecture) -> int:
    """How long the twin's texts are: as long as it has positions."""
    inputs = twin.stack.inputs
    return inputs.positions if isinstance(inputs, Tokens) and inputs.positions else LENGTH


def head_size(attention: Attention) -> tuple[int, int]:
    """(D, R): the least head size at which the same share of the rows is rotated; 3 without rotary positions."""
    if not attention.rotary:
        return 3, 0
    share = Fraction(attention.rotary, attention.qk_size)
    if share == 1:
        few = attention.heads // attention.kv_groups <= 2
        return (4, 4) if few else (2, 2)
    sizes = [(size, rotary) for size in range(3, 11) for rotary in range(2, size, 2)]
    return min(sizes, key=lambda pair: (abs(Fraction(pair[1], pair[0]) - share), pair))


def _width(block: Block) -> int:
    if block.latent:
        return 7
    size, _ = head_size(block.attention)
    value = min(size, MOST_IN_A_VALUE)
    # A value bias without an output bias is identified while the values of all groups fit into the stream.
    alone = (block.attention.v_bias or block.norm.bias) and not block.attention.o_bias
    return max(6, size + 2, _groups(block.attention) * value + 2 if alone else 0)


def _groups(attention: Attention) -> int:
    return 1 if attention.kv_groups == 1 else 2


def _heads(a: Attention, width: int) -> int:
    """Query heads of the twin: as many per kv group as the model has, while that is affordable."""
    groups = _groups(a)
    most = MOST_IN_W_Q // (groups * head_size(a)[0] * width)
    return groups * min(a.heads // a.kv_groups, max(most, 2))


def _stack(stack: Stack, width: int, layers: int, tokens: int, positions: int) -> Stack:
    inputs = stack.inputs
    if isinstance(inputs, Tokens):
        inputs = Tokens(tokens, positions if inputs.positions else 0, inputs.unread, min(inputs.types, 2))
    elif isinstance(inputs, Patches):
        inputs = Patches(pixels=4, count=LENGTH - 1)
    else:
        inputs = Audio(channels=2, positions=LENGTH)
    blocks = tuple(_block(block, width, layers) for block in stack.blocks)
    return replace(stack, inputs=inputs, blocks=blocks, relative_buckets=LENGTH if stack.relative_buckets else 0)


def _block(block: Block, width: int, layers: int) -> Block:
    latent = Latent(4 if block.latent.q else 0, 4, 2, block.latent.norms) if block.latent else None
    cross = _attention(block, block.cross, width, layers) if block.cross else None
    mlp = _mlp(block.mlp)
    return replace(
        block, attention=_attention(block, block.attention, width, layers), mlp=mlp, latent=latent, cross=cross
    )


def _attention(block: Block, a: Attention, width: int, layers: int) -> Attention:
    size, rotary = (4, 2) if block.latent else head_size(a)
    v_size = 2 if block.latent else min(size, MOST_IN_A_VALUE)
    return replace(
        a,
        layers=layers,
        heads=_heads(a, width),
        kv_groups=_groups(a),
        embedding=width,
        qk_size=size,
        v_size=v_size,
        rotary=rotary,
    )


def _mlp(mlp: Mlp) -> Mlp:
    if not mlp.experts:
        return replace(mlp, width=UNITS)
    experts: Experts = replace(
        mlp.experts, number=4, active=min(mlp.experts.active, 2), width=3, shared=3 if mlp.experts.shared else 0
    )
    return replace(mlp, width=UNITS, experts=experts)
