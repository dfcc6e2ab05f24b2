"""Holding the closed form of an architecture against the numerical rank of its twin."""

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
# Rows of the Jacobian per parameter. Half as many give the same rank, so the sampling hides none.
ROWS_PER_PARAMETER = 2
ROWS_AT_ONCE = 256


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
    """(n, p): derivatives of n numbers by all p trained numbers of the twin, n = 2p.

    Each number is a random linear form of all outputs on an input of its own. Random mixtures lose no rank, and one
    backward pass for each costs less than a forward pass for every parameter.
    """
    params = random_parameters(twin, seed)
    names = [t.name for t in tensors(twin) if not t.frozen]
    sizes = [params[name].numel() for name in names]
    theta = torch.cat([params[name].flatten() for name in names])
    epsilon = EPSILON if eps else 0.0

    def run(theta: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        pieces = zip(names, theta.split(sizes), strict=True)
        moved = params | {name: piece.view_as(params[name]) for name, piece in pieces}
        return outputs(twin, moved, inputs, epsilon, kind == "log_probs")

    def number(theta: torch.Tensor, inputs: Inputs, weights: torch.Tensor) -> torch.Tensor:
        alone = [tuple(part.unsqueeze(0) for part in given) for given in inputs]
        return (run(theta, alone)[0] * weights).sum()

    rows = ROWS_PER_PARAMETER * len(theta)
    inputs = random_inputs(twin, rows, length(twin), seed + 1)
    shape = run(theta, random_inputs(twin, 1, length(twin), seed)).shape[1:]
    generator = torch.Generator().manual_seed(seed + 2)
    weights = torch.randn((rows, *shape), generator=generator, dtype=theta.dtype)
    each = torch.func.vmap(torch.func.grad(number), in_dims=(None, 0, 0), chunk_size=ROWS_AT_ONCE)
    found: torch.Tensor = each(theta, inputs, weights)
    return found
