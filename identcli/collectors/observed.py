"""One optimizer step as seen from a circuit: the weights before and after, the gradient between, all heads at once."""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor

from identcli.architecture.pairs import PairFamily
from identcli.collectors.settings import StepSettings
from identcli.symmetry.charge import Grams, charge, grams, trace
from identcli.symmetry.pair import Pair, augmented, biases_alone, difference, outer
from identcli.symmetry.project import Spectra, spectra
from identcli.symmetry.rounding import Floors, floors

IN_THE_CACHE = 1 << 20  # bytes


@dataclass(frozen=True)
class Observed:
    """Everything float64, batched over (L, G): weights before and after the step, the gradient (after clipping; None
    when the parameters had none, or nothing follows from it), the charge at the start of training, the dtype in which
    the weights are stored; the grams before the step, where they are at hand.

    What several measurements need is computed once, when first asked for.
    """

    family: PairFamily
    before: Pair
    after: Pair
    gradient: Pair | None
    start: Tensor
    settings: StepSettings
    stored_as: torch.dtype
    known: Grams | None = None

    @property
    def finite(self) -> bool:
        """Whether all weights after the step are."""
        return isfinite(self.trace_after.sum())

    @cached_property
    def update(self) -> Pair:
        return difference(self.after, self.before)

    @cached_property
    def update_energy(self) -> Tensor:
        """‖δA‖² + ‖δB‖² of the weights; NaN for a zero update, so that every share of it is undefined."""
        A, B = (torch.linalg.vector_norm(part, dim=(-2, -1)) for part in (self.update.A, self.update.B))
        energy = A.square() + B.square()
        return torch.where(energy > 0, energy, torch.nan)

    @cached_property
    def grams_before(self) -> Grams:
        """W_Q W_Qᵀ and W_K W_Kᵀ (weights only) before the step."""
        return self.known or grams(self.before)

    @cached_property
    def spectra_before(self) -> Spectra:
        """Their spectra."""
        return spectra(self.before, self.grams_before)

    @cached_property
    def grams_after(self) -> Grams:
        """The same after the step."""
        return grams(self.after)

    @cached_property
    def trace_after(self) -> Tensor:
        return trace(self.grams_after)

    @cached_property
    def charge_before(self) -> Tensor:
        return charge(self.family.group, self.before, self.grams_before)

    @cached_property
    def charge_after(self) -> Tensor:
        return charge(self.family.group, self.after, self.grams_after)

    @cached_property
    def augmented_charge_before(self) -> Tensor:
        return self.charge_before + self._charge_of_biases(self.before)

    @cached_property
    def augmented_charge_after(self) -> Tensor:
        return self.charge_after + self._charge_of_biases(self.after)

    def _charge_of_biases(self, pair: Pair) -> Tensor:
        group = self.family.group
        if group.rotary or pair.a is None:
            return charge(group, augmented(group, biases_alone(pair)))
        return outer(pair.a, pair.a).flatten(-2)  # the same; b has no part in a pair without rotary positions

    @cached_property
    def floors(self) -> Floors:
        """What rounding of the weights after the step gives. Some layers at a time: the passes over their weights then
        find them in the cache."""
        first, *others = (self._floors(some) for some in some_layers(self.after, IN_THE_CACHE))
        return Floors(*(torch.cat(part) for part in zip(first, *others, strict=True))) if others else first

    def _floors(self, some: slice) -> Floors:
        return floors(self.family, self.after.layers(some), self.stored_as, self.update_energy[some])


def some_layers(pair: Pair, most_bytes: int) -> list[slice]:
    """So many layers at a time that a matrix of all their heads has no more bytes in float64; one at least."""
    most = max(1, most_bytes // (8 * pair.A[0].numel()))
    return [slice(first, first + most) for first in range(0, pair.A.shape[0], most)]
