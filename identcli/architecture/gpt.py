"""The description of the project's own GPT, nanoGPT's: pre-norm, learned positions, GELU, a tied head."""

from identcli.architecture.description import Architecture, Block, Head, Mlp, Norm, Stack, Tokens
from identcli.architecture.pairs import Attention


def gpt(name: str, layers: int, heads: int, width: int, positions: int, vocab: int, bias: bool) -> Architecture:
    """`bias` switches all biases, those of the norms included."""
    size = width // heads
    attention = Attention(layers, heads, heads, width, size, size, q_bias=bias, k_bias=bias, v_bias=bias, o_bias=bias)
    norm = Norm("layer", bias=bias)
    mlp = Mlp(4 * width, "gelu", up_bias=bias, down_bias=bias)
    stack = Stack("decoder", Tokens(vocab, positions), (Block(attention, mlp, norm),), final_norm=norm)
    return Architecture(name, (stack,), Head(tied=True))
