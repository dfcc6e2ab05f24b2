"""μ: whether queries and keys are about to lose rank together (5.3)."""

from torch import Tensor

from identcli.collectors.observed import Observed


def measure_spectrum(step: Observed) -> dict[str, Tensor]:
    """`mu`, `eig_min_a`, `eig_min_b` (L, G), before the step, weights only.

    mu = λ_min(AAᵀ) + λ_min(BBᵀ), the least sum of an eigenvalue of each: the least denominator in the projection. It
    is 0 only when both have lost rank, so each smallest eigenvalue is kept as well.
    """
    least_a = step.spectra_before.values_a[..., 0]
    least_b = step.spectra_before.values_b[..., 0]
    return {"mu": least_a + least_b, "eig_min_a": least_a, "eig_min_b": least_b}
