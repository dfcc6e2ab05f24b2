"""What a claim is tried on: random weights, biases and inputs of one size, in float64, drawn from one seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from identcli.architecture.groups import Group, RotaryStyle
from identcli.architecture.pairs import Attention, Circuit, PairFamily
from identcli.models.attention import PLAIN, Variant, attention
from identcli.symmetry import act as acting
from identcli.symmetry.pair import Pair, gather, scatter

Roles = dict[str, Tensor]

# The tolerance of what is true exactly, and the reason that most claims share.
ROUNDING = 1e-12
BY_ROUNDING = "float64: epsilon 2e-16 × condition of S (≤ 4, squared) × sums of a few hundred terms"
EXACT = "a count: exact, or wrong"


@dataclass(frozen=True)
class Size:
    """E embedding, H heads, G kv groups, D query-key and C value head size, T positions, B inputs. D ≤ E, C ≤ E."""

    E: int
    H: int
    G: int
    D: int
    C: int
    T: int
    B: int


SMALL = Size(E=7, H=4, G=2, D=4, C=3, T=4, B=2)
LARGE = Size(E=32, H=6, G=3, D=8, C=6, T=10, B=2)


class Trial:
    """Draws whatever a claim needs; every method advances the same generator."""

    def __init__(self, size: Size, seed: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Independent standard normal numbers in float64."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def orthogonal(self, *shape: int) -> Tensor:
        """Orthogonal matrices (…, D, D); shape ends with D."""
        return torch.linalg.qr(self.normal(*shape, shape[-1])).Q

    def invertible(self, *shape: int) -> Tensor:
        """Matrices (…, D, D) with singular values between ½ and 2, so no condition number above 4."""
        stretch = 2 ** (2 * torch.rand(*shape, generator=self.generator, dtype=torch.float64) - 1)
        return self.orthogonal(*shape) * stretch.unsqueeze(-2) @ self.orthogonal(*shape)

    def algebra(self, group: Group, *batch: int) -> Tensor:
        """Matrices X (…, D, D) of the group's algebra, random combinations of its basis."""
        basis = acting.basis(group)
        return torch.einsum("...k,kij->...ij", self.normal(*batch, len(basis)), basis)

    def element(self, group: Group, *batch: int) -> acting.Move:
        """Moves of random elements exp(X) of the group; X has norm ½, so condition numbers stay below e."""
        X = self.algebra(group, *batch)
        return acting.move(torch.linalg.matrix_exp(X / (2 * torch.linalg.matrix_norm(X)[..., None, None])))

    def facts(
        self, biases: str = "qkvo", *, rotary: int = 0, rotary_style: RotaryStyle = "half", kv_groups: int | None = None
    ) -> Attention:
        """An attention layer of this size with the named biases; every head its own group with kv_groups = H."""
        s = self.size
        q, k, v, o = (letter in biases for letter in "qkvo")
        return Attention(1, s.H, kv_groups or s.G, s.E, s.D, s.C, q, k, v, o, rotary, rotary_style)

    def roles(self, facts: Attention) -> Roles:
        """Weights (heads, rows, E) that keep the size of a unit input, and biases of unit size: none is negligible."""
        E, D, C = facts.embedding, facts.qk_size, facts.v_size
        roles = {
            "W_Q": self.normal(facts.heads, D, E) / E**0.5,
            "W_K": self.normal(facts.kv_groups, D, E) / E**0.5,
            "W_V": self.normal(facts.kv_groups, C, E) / E**0.5,
            "W_O": self.normal(facts.heads, C, E) / (facts.heads * C) ** 0.5,
        }
        shapes = {"b_Q": (facts.heads, D), "b_K": (facts.kv_groups, D), "b_V": (facts.kv_groups, C), "b_O": (E,)}
        for name, shape in shapes.items():
            if getattr(facts, f"{name[-1].lower()}_bias"):
                roles[name] = self.normal(*shape)
        return roles

    def inputs(self) -> Tensor:
        """x (B, T, E)."""
        return self.normal(self.size.B, self.size.T, self.size.E)

    def pair(self, facts: Attention, circuit: Circuit) -> tuple[PairFamily, Pair]:
        """The pairs (1, G, D, …) of a random layer, biases included."""
        family = facts.pair(circuit)
        return family, gather_layer(family, self.roles(facts))


def gather_layer(family: PairFamily, roles: Mapping[str, Tensor]) -> Pair:
    """The pairs (1, G, D, …) of a single layer's roles."""
    return gather(family, {name: role.unsqueeze(0) for name, role in roles.items()})


def moved(family: PairFamily, step: acting.Move, roles: Mapping[str, Tensor]) -> Roles:
    """The layer's roles after its pairs were moved; roles outside the circuit stay."""
    pair = acting.act(step, gather_layer(family, roles))
    return {**roles, **{name: role.squeeze(0) for name, role in scatter(family, pair).items()}}


def difference(after: Tensor, before: Tensor) -> float:
    """‖after − before‖ / ‖before‖ in the Frobenius norm."""
    return float((after - before).norm() / before.norm())


def largest(*values: float) -> float:
    """The largest, or NaN when any is NaN: Python's own would pass over it, and what can't be computed would hold."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def smallest(*values: float) -> float:
    """The smallest, or NaN when any is NaN."""
    return -largest(*(-value for value in values))


def output_change(facts: Attention, after: Roles, before: Roles, x: Tensor, variant: Variant = PLAIN) -> float:
    """Relative change of the layer's output from one set of weights to another."""
    return difference(attention(facts, after, x, variant), attention(facts, before, x, variant))
