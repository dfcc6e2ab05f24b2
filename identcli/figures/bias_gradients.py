"""Fig. 3: the gradient of the key bias vanishes, that of the query bias does not, whatever the optimizer.

One panel a setting; for the key and for the query bias the norm of the gradient by step: the band between the least and
the greatest of the layers, their median and their mean. The axis is logarithmic, as rounding leaves of the key bias's
gradient something like 1e-9; where it is exactly 0, the foot of the axis says so.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from identcli.figures import panel, style
from identcli.figures.cases import Case, cases
from identcli.figures.data import Layered, Run
from identcli.figures.decimation import decimate
from identcli.figures.extent import Extent
from identcli.figures.picture import Picture, Unsupported

COLUMNS = {"query_norm": ("query bias", style.ORANGE), "key_norm": ("key bias", style.BLUE)}
ACROSS = 5

# Inches: a panel, the margins, the gaps.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM, GAP, HEADER = 2.95, 2.9, 0.95, 0.30, 1.05, 0.62, 0.25, 0.75


def draw(runs: Sequence[Run]) -> Picture:
    """A panel for each setting among the runs. Unsupported when no run has recorded the gradients of its biases."""
    panels = cases(runs)
    recorded = [case.run.biases(tuple(COLUMNS)) for case in panels]
    if not any(recorded):
        raise Unsupported(_reason(runs))
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    # One panel alone gets some more room, for the legend above it.
    panel_width = max(PANEL_WIDTH, 7.5 / across)
    width = LEFT + RIGHT + across * panel_width + (across - 1) * GAP
    figure, grid = style.grid(down, across, width, PANEL_HEIGHT, (LEFT, RIGHT, TOP, BOTTOM), (GAP, HEADER))
    scale = Extent.of([biases[name] for biases in recorded if biases for name in COLUMNS], log=True)
    steps = max(case.run.steps for case in panels)
    notes = []
    for axes, case, biases in zip(grid.flat, panels, recorded, strict=False):
        scale.apply(axes)
        panel.step_axis(axes, steps)
        axes.tick_params(labelleft=axes in grid[:, 0])
        axes.set_title(textwrap.fill(case.title, 32), fontsize=11)
        panel.mark_stop(axes, case.run)
        if case.run.trouble:
            panel.say(axes, textwrap.fill(case.run.trouble, 32), style.VERMILLION)
        if biases is None:
            if not case.run.trouble:
                panel.say(axes, "no metrics")
            continue
        for name, (_, colour) in COLUMNS.items():
            _envelope(axes, scale, biases.step, biases[name], colour)
        notes.append(_ratio(case, biases))
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel("norm of the gradient")
    if remark := scale.remark("the bias gradients"):
        notes.append(remark)
    keys: list[Artist] = [
        Patch(color=colour, alpha=0.3, label=f"{name}: range over layers") for name, colour in COLUMNS.values()
    ]
    keys += [panel.key("median", color=style.INK, linewidth=style.HEAVY)]
    keys += [panel.key("mean", color=style.INK, linewidth=1.2, linestyle=style.DASHED)]
    style.legend(figure, keys, down=0.08)
    return Picture(figure, notes)


def _envelope(axes: Axes, scale: Extent, step: np.ndarray, values: np.ndarray, colour: str) -> None:
    """(S,), (S, L): the band, the median and the mean over the layers; a gap where no layer has a value."""
    defined = np.isfinite(values).any(axis=1)
    over = {}
    for how in (np.nanmin, np.nanmax, np.nanmedian, np.nanmean):
        over[how] = np.full(len(values), np.nan)
        over[how][defined] = scale.shown(how(values[defined], axis=1))
    low_x, low = decimate(step, over[np.nanmin][:, None])
    high_x, high = decimate(step, over[np.nanmax][:, None])
    x = np.union1d(low_x, high_x)
    band = [np.interp(x, at[:, 0], edge[:, 0]) for at, edge in ((low_x, low), (high_x, high))]
    axes.fill_between(x, *band, color=colour, alpha=0.25, linewidth=0)
    panel.curve(axes, step, over[np.nanmedian], color=colour, linewidth=style.HEAVY)
    panel.curve(axes, step, over[np.nanmean], color=colour, linewidth=1.2, linestyle=style.DASHED)


def _ratio(case: Case, biases: Layered) -> str:
    """How much smaller the key bias's largest gradient is than the query bias's, over all layers and steps."""
    query, key = (float(np.nanmax(biases[name], initial=0.0)) for name in COLUMNS)
    words = "exactly 0" if key == 0 else f"{key:.1e}, {query / key:.1e} times smaller"
    return f"{case.title}: largest gradient norm of a query bias {query:.1e}, of a key bias {words}"


def _reason(runs: Sequence[Run]) -> str:
    run = runs[0]
    if run.config and not run.config["model"]["bias"]:
        return f"{run.path}: no gradients of biases, as the model has none: train with model.bias=true"
    return f"{run.path}: no metrics of the bias gradients, which collect=paper would record"
