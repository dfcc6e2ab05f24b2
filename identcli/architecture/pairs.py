"""The pairs of an attention layer: which matrices meet only in a product, and which group acts on them."""

from dataclasses import dataclass
from typing import Literal

from identcli.architecture.errors import UserError
from identcli.architecture.groups import Group, RotaryStyle

Circuit = Literal["qk", "ov", "lora"]

# The role tensors of each circuit in the order (A, B, bias of A, bias of B); W_O stands for its transpose,
# per head. lora_B stands for its transpose too; a low-rank adapter has no bias that moves.
ROLES: dict[Circuit, tuple[str, str, str, str | None]] = {
    "qk": ("W_Q", "W_K", "b_Q", "b_K"),
    "ov": ("W_V", "W_O", "b_V", None),
    "lora": ("lora_A", "lora_B", "lora_bias", None),
}


@dataclass(frozen=True)
class Attention:
    """The facts of an attention layer that decide its pairs, in the paper's letters.

    layers L, heads H, kv_groups G (equal to H without grouping), embedding E, qk_size D, v_size C; which of
    the four biases exist; how many of the D rows are rotated by positions, and in which style.
    """

    layers: int
    heads: int
    kv_groups: int
    embedding: int
    qk_size: int
    v_size: int
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    rotary: int = 0
    rotary_style: RotaryStyle = "half"

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_groups", "embedding", "qk_size", "v_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.heads % self.kv_groups:
            raise UserError(f"{self.heads} heads can't be shared out over {self.kv_groups} kv groups")

    def pair(self, circuit: Circuit) -> "PairFamily":
        """The pairs of one circuit: G a layer, each with the H/G heads that share its key or value."""
        if circuit == "qk":
            group, biases = Group(self.qk_size, self.rotary, self.rotary_style), (self.q_bias, self.k_bias)
        elif circuit == "ov":
            group, biases = Group(self.v_size), (self.v_bias, False)
        else:
            raise UserError(f"circuit {circuit!r}: must be 'qk' or 'ov'")
        shared = self.heads // self.kv_groups
        return PairFamily(circuit, self.layers, self.kv_groups, shared, self.embedding, group, *biases)


@dataclass(frozen=True)
class PairFamily:
    """All pairs of one circuit: `layers` × `groups` of them, moved by independent elements of `group`.

    qk: A = the group's m query matrices side by side (D, m·E), each with its bias as one more column; B =
    W_K (D, E). ov: A = [W_V b_V] (C, E), B = the group's m W_Oᵀ side by side (C, m·E).
    """

    circuit: Circuit
    layers: int
    groups: int
    heads_per_group: int
    width: int
    group: Group
    bias_a: bool
    bias_b: bool

    @property
    def columns(self) -> tuple[int, int]:
        """Columns of A and of B, weights only."""
        wide = self.heads_per_group * self.width
        return (wide, self.width) if self.circuit == "qk" else (self.width, wide)

    @property
    def isotropic_share(self) -> float:
        """Mean of ρ for an update whose direction is uniform: dimension / number of weights (theory 13).

        D/(2E) = 1/(2H) for one head a group and D = E/H; D/((m+1)E) with m heads a group; 1/((m+1)E) with
        rotary positions. Exact while D ≤ E, where the group acts freely.
        """
        return self.group.dimension / (self.group.size * sum(self.columns))
