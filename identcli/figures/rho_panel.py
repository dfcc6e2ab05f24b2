"""ρ of every head on a log axis, with what says how to read it.

1/(2H) is what a direction chosen by lot would reach. The largest update norm belongs there because ρ of a tiny update
is ill-posed (5.3). The rounding floor is what the rounding of the stored weights alone would give.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from identcli.figures import panel, style
from identcli.figures.data import Layered, Run
from identcli.figures.extent import Extent

COLUMNS = ("rho", "update_norm", "rho_floor")
TITLE = "ρ: unidentified share of the update"

_NORM: dict[str, Any] = {"color": style.MUTED, "linewidth": 1.0, "zorder": 2}
_FLOOR: dict[str, Any] = {"color": style.INK, "linewidth": 1.1, "linestyle": style.DASHED, "zorder": 3}
_CHANCE: dict[str, Any] = {"color": style.VERMILLION, "linewidth": 1.2, "zorder": 3}


def extent(measured: Sequence[tuple[Run, Layered]]) -> Extent:
    """Limits for all of these: every ρ and update norm, 1/(2H), and floors that lie within two decades of some ρ."""
    shares = [heads["rho"] for _, heads in measured]
    least = min((float(share[share > 0].min(initial=np.inf)) for share in shares), default=np.inf)
    floors = [panel.over_heads(heads["rho_floor"]) for _, heads in measured]
    norms = [heads["update_norm"] for _, heads in measured]
    chance = [np.array([_chance(run)]) for run, _ in measured]
    return Extent.of([*shares, *norms, *chance, *(floor[floor > least / 100] for floor in floors)], log=True)


def draw(axes: Axes, run: Run, heads: Layered, scale: Extent) -> None:
    """The lines of one run. Of a floor that lies below the axis a word says where."""
    floor = panel.over_heads(heads["rho_floor"])
    panel.curve(axes, heads.step, panel.over_heads(heads["update_norm"], "max"), **_NORM)
    panel.head_lines(axes, heads.step, scale.shown(heads["rho"]), noisy=True)
    panel.curve(axes, heads.step, floor, **_FLOOR)
    axes.axhline(_chance(run), **_CHANCE)
    if (floor < scale.low).sum() > 0.9 * np.isfinite(floor).sum():
        words = f"rounding: {np.nanmedian(floor):.0e}, below"
        axes.text(0.98, 0.07, words, transform=axes.transAxes, ha="right", color=style.MUTED)


def keys() -> list[Line2D]:
    """Legend entries for ρ's company."""
    looks = {"largest update norm": _NORM, "ρ by rounding alone": _FLOOR, "1/(2H)": _CHANCE}
    return [panel.key(label, **look) for label, look in looks.items()]


def _chance(run: Run) -> float:
    return run.attention.pair("qk").isotropic_share
