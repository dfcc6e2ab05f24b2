"""DeepSeek's multi-head latent attention: keys and values are read from a latent, and one rotated key is shared.

Rows of the up-projection of queries: head by head [D_n plain | D_r rotated]. Rows of the up-projection of keys and
values: head by head [D_n key | C value]. Rows of the down-projection: [the latent | D_r of the shared rotated key].

Three circuits follow (theory 10): the plain rows, GL(D_n) for each head; the rotated rows, one set of scaled rotations
for all heads together, since they share the key; values and outputs, GL(C) for each head.
"""

from collections.abc import Collection

from identcli.architecture.groups import Group
from identcli.architecture.pairs import Attention, PairFamily
from identcli.layouts.kind import Shape
from identcli.layouts.located import Located
from identcli.layouts.places import Place

INSIDE = "self_attn."
ANCHOR = "kv_b_proj.weight"
MODEL_TYPES = ("deepseek_v2", "deepseek_v3")


def query_name(at: str, names: Collection[str]) -> str:
    """The projection that makes the queries: from a latent of their own, or from the stream."""
    return f"{at}q_b_proj.weight" if f"{at}q_b_proj.weight" in names else f"{at}q_proj.weight"


def shapes(at: str, query: str, facts: Attention, query_rank: int, rank: int) -> dict[str, Shape]:
    """The shape of each tensor. facts: qk_size = D_n + D_r, rotary = D_r; query_rank 0: no latent for queries."""
    H, C, E = facts.heads, facts.v_size, facts.embedding
    plain = facts.qk_size - facts.rotary
    return {
        query: (H * facts.qk_size, query_rank or E),
        f"{at}kv_a_proj_with_mqa.weight": (rank + facts.rotary, E),
        f"{at}kv_b_proj.weight": (H * (plain + C), rank),
        f"{at}o_proj.weight": (E, H * C),
    }


def located(
    at: str, query: str, layers: tuple[int, ...], facts: Attention, rank: int, key_bias: bool, part: str = ""
) -> list[Located]:
    """The three circuits. key_bias: the down-projection has a bias, whose last rows move with the shared key."""
    H, C, D = facts.heads, facts.v_size, facts.qk_size
    rotary, plain = facts.rotary, facts.qk_size - facts.rotary
    up, down, out = f"{at}kv_b_proj.weight", f"{at}kv_a_proj_with_mqa", f"{at}o_proj.weight"
    pre = f"{part} " if part else ""
    shared_key = Place(f"{down}.weight", rank, 1, rotary, rotary)
    rotated = {"W_Q": Place(query, plain, H, rotary, D), "W_K": shared_key}
    if key_bias:
        rotated["b_K"] = Place(f"{down}.bias", rank, 1, rotary, rotary)
    of_layers = len(layers)
    group = Group(rotary, rotary, facts.rotary_style)
    return [
        Located(
            f"{pre}plain",
            PairFamily("qk", of_layers, H, 1, rank, Group(plain), False, False),
            layers,
            {"W_Q": Place(query, 0, H, plain, D), "W_K": Place(up, 0, H, plain, plain + C)},
        ),
        Located(
            f"{pre}rotated",
            PairFamily("qk", of_layers, 1, H, facts.embedding, group, False, key_bias),
            layers,
            rotated,
        ),
        Located(
            part,
            PairFamily("ov", of_layers, H, 1, facts.embedding, Group(C), False, False),
            layers,
            {"W_V": Place(up, plain, H, C, plain + C), "W_O": Place(out, 0, H, C, C, axis=1)},
        ),
    ]
