"""Holding the closed form of an architecture against the numerical rank of its twin."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from identcli.architecture.description import Architecture
from identcli.architecture.families import Family, Outputs, families
from identcli.architecture.shrink import length, shrink
from identcli.architecture.tensors import tensors
from identcli.models.twin import Inputs, outputs, random_inputs, random_parameters
from identcli.symmetry.rank import Rank, numerical_rank

# Large, so that what ε pins down shows as a singular value far above rounding.
EPSILON = 0.1
# Rows of the Jacobian per parameter. Every context (a position with all that it sees) moves the last hidden state in
# E directions only, however many tokens there are, and contexts of the first position soon repeat.
ROWS_PER_PARAMETER = 3.0
TANGENTS_AT_ONCE = 64


@dataclass(frozen=True)
class TwinCheck:
    """families: those of the twin, with the predicted dimensions; measured: parameters − rank of its Jacobian."""

    twin: Architecture
    parameters: int
    families: tuple[Family, ...]
    rank: Rank

    @property
    def measured(self) -> int:
        return self.rank.nullity

    @property
    def gap(self) -> float:
        return self.rank.gap

    @property
    def by_family(self) -> dict[str, int]:
        """The predicted dimensions, family by family."""
        found: dict[str, int] = {}
        for family in self.families:
            found[family.name] = found.get(family.name, 0) + family.dimension
        return found

    @property
    def predicted(self) -> int:
        return sum(family.dimension for family in self.families)

    @property
    def holds(self) -> bool:
        """Whether the numbers agree; where a family is only a lower bound, whether the measured one reaches it."""
        if any(family.only_at_least for family in self.families):
            return self.rank.decided and self.predicted <= self.measured
        return self.rank.decided and self.predicted == self.measured

    @property
    def shape(self) -> str:
        """The twin in the paper's letters."""
        block = self.twin.stack.blocks[-1]
        a = block.attention
        sizes = {"E": a.embedding, "H": a.heads, "G": a.kv_groups, "D": a.qk_size, "V": self.twin.vocab}
        layers = sum(stack.layers for stack in self.twin.stacks)
        return ", ".join([f"L {layers}", *(f"{letter} {size}" for letter, size in sizes.items() if size)])

    @property
    def complaint(self) -> str:
        """What is wrong, in one line."""
        if not self.rank.decided:
            return f"{self.twin.name}: its rank can't be told, the gap between singular values is only {self.gap:.1e}"
        return f"{self.twin.name}: {self.predicted} dimensions predicted, {self.measured} measured (gap {self.gap:.1e})"

    def as_data(self) -> dict[str, int | float | str | bool]:
        return {
            "predicted": self.predicted,
            "measured": self.measured,
            "gap": self.gap,
            "parameters": self.parameters,
            "twin": self.shape,
            "holds": self.holds,
        }


def check(architecture: Architecture, kind: Outputs = "log_probs", eps: bool = True, seed: int = 0) -> TwinCheck:
    """Build the twin of an architecture and count its null directions at generic weights, in float64."""
    twin = shrink(architecture)
    found = numerical_rank(jacobian(twin, kind, eps, seed))
    return TwinCheck(twin, found.columns, families(twin, kind, eps), found)


def jacobian(twin: Architecture, kind: Outputs, eps: bool, seed: int) -> torch.Tensor:
    """(outputs, parameters): the derivatives of all outputs on random inputs by all trained numbers of the twin."""
    params = random_parameters(twin, seed)
    names = [t.name for t in tensors(twin) if not t.frozen]
    sizes = [params[name].numel() for name in names]
    epsilon = EPSILON if eps else 0.0

    def run(theta: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        pieces = zip(names, theta.split(sizes), strict=True)
        moved = params | {name: piece.view_as(params[name]) for name, piece in pieces}
        return outputs(twin, moved, inputs, epsilon, kind == "log_probs")

    theta = torch.cat([params[name].flatten() for name in names])
    positions = run(theta, random_inputs(twin, 1, length(twin), seed)).shape[1]
    batch = int(ROWS_PER_PARAMETER * len(theta) / (positions * twin.width)) + 1
    inputs = random_inputs(twin, batch, length(twin), seed + 1)
    mixed = _mixtures(twin, batch, positions, seed + 2)

    def column(tangent: torch.Tensor) -> torch.Tensor:
        derivative: torch.Tensor = torch.func.jvp(lambda t: mixed(run(t, inputs)), (theta,), (tangent,))[1]
        return derivative

    columns = torch.func.vmap(column, chunk_size=TANGENTS_AT_ONCE)(torch.eye(len(theta), dtype=theta.dtype))
    return columns.T


def _mixtures(twin: Architecture, batch: int, positions: int, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """E + 1 random mixtures of each context's V outputs: as much as it can show of the weights, in fewer rows."""
    if twin.vocab <= twin.width + 1 or not twin.head:
        return torch.flatten
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, positions, twin.width + 1, twin.vocab)
    weights = torch.randn(shape, generator=generator, dtype=torch.float64)
    return lambda outputs: (weights @ outputs.unsqueeze(-1)).flatten()
