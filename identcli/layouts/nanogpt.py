"""nanoGPT's layout: c_attn holds all queries, then all keys, then all values on its rows; c_proj W_O on its columns."""

from identcli.architecture.pairs import Attention
from identcli.layouts.places import Layout, Place


def nanogpt(attention: Attention) -> Layout:
    """The layout of `identcli.models.gpt.GPT`, and of any nanoGPT checkpoint with these facts (D = C = E/H)."""
    heads, size, width = attention.heads, attention.qk_size, attention.embedding
    inside = "transformer.h.{layer}.attn."
    places = {}
    for part, letter in enumerate("QKV"):
        bias = getattr(attention, f"{letter.lower()}_bias")
        places[f"W_{letter}"] = Place(f"{inside}c_attn.weight", part * width, heads, size, size)
        if bias:
            places[f"b_{letter}"] = Place(f"{inside}c_attn.bias", part * width, heads, size, size)
    places["W_O"] = Place(f"{inside}c_proj.weight", 0, heads, size, size, axis=1)
    return Layout(attention, places)
