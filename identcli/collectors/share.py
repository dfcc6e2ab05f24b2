"""ρ: the share of the update that lies in the unidentified subspace (5.1), with and without biases, and its floor."""

from torch import Tensor

from identcli.collectors.observed import Observed
from identcli.symmetry.project import unidentified_shares


def measure_share(step: Observed) -> dict[str, Tensor]:
    """`rho`, `rho_bias`, `rho_floor`, `update_norm`, each (L, G); NaN where the update is zero.

    `rho` is the paper's, of the weights alone; its isotropic mean is D/(2E) = 1/(2H). `rho_bias` is the exact statement
    when biases are trained. `rho_floor` is what rounding of the stored weights alone would give.
    """
    group = step.family.group
    known = None if group.rotary else step.spectra_before
    rho, rho_bias = unidentified_shares(group, step.before, step.update, known, step.update_energy)
    return {
        "rho": rho,
        "rho_bias": rho_bias,
        "rho_floor": step.floors.share,
        "update_norm": step.update_energy.nan_to_num(0).sqrt(),
    }
