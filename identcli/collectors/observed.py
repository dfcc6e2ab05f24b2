"""One optimizer step as seen from a circuit: the weights before and after, the gradient between, all heads at once."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from identcli.architecture.pairs import PairFamily
from identcli.collectors.settings import StepSettings
from identcli.symmetry.charge import Grams, charge, grams, trace
from identcli.symmetry.pair import Pair, augmented, biases_alone, difference, squared_norm
from identcli.symmetry.project import Spectra, spectra
from identcli.symmetry.rounding import rounding_variance


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
        return bool(trace(self.grams_after).isfinite().all())

    @cached_property
    def update(self) -> Pair:
        return difference(self.after, self.before)

    @cached_property
    def update_energy(self) -> Tensor:
        """‖δA‖² + ‖δB‖² of the weights; NaN for a zero update, so that every share of it is undefined."""
        energy = squared_norm(Pair(self.update.A, self.update.B))
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
        return charge(self.family.group, augmented(self.family.group, biases_alone(pair)))

    @cached_property
    def rounding(self) -> Pair:
        """Variance of rounding of the weights after the step."""
        return Pair(
            rounding_variance(self.after.A, self.stored_as),
            rounding_variance(self.after.B, self.stored_as),
        )
