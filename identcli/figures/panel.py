"""What is drawn inside one panel: a line per layer and head, what it is compared with, events, and what is missing."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from identcli.figures import style
from identcli.figures.data import Run
from identcli.figures.decimation import decimate
from identcli.figures.extent import Extent

DENSE = 150  # points a line


def head_lines(axes: Axes, step: np.ndarray, values: np.ndarray, noisy: bool = False) -> LineCollection:
    """(S,), (S, L, G): a line for each layer and head in the colour of its layer, all in one collection; NaN: a gap.

    noisy: lines that jump at every step; with many points they are drawn thin and transparent, or the last would hide
    all others.
    """
    _, layers, heads = values.shape
    x, y = decimate(step, values.reshape(len(step), layers * heads))
    segments = np.stack([x.T, y.T], axis=-1)
    colours = np.repeat(style.layers(layers), heads)
    dense = noisy and segments.shape[1] > DENSE
    look = {"linewidths": 0.4, "alpha": 0.5} if dense else {"linewidths": style.LINE, "alpha": 0.85}
    lines = LineCollection(list(segments), colors=colours, zorder=2.5, **look)
    axes.add_collection(lines, autolim=False)
    return lines


def curve(axes: Axes, step: np.ndarray, values: np.ndarray, **look: Any) -> Line2D:
    """(S,), (S,): one line through all but invisible detail."""
    x, y = decimate(step, values[:, None])
    (line,) = axes.plot(x[:, 0], y[:, 0], **look)
    return line


def losses(axes: Axes, run: Run, others: Sequence[Run] = ()) -> None:
    """Training loss as a light line, validation loss as points; the validation losses of other seeds as faint lines."""
    curve(axes, *run.losses(), **_TRAINING)
    for other in others:
        axes.plot(*other.evaluations(), color=style.BLUE, linewidth=style.LINE, alpha=0.4)
    step, loss = run.evaluations()
    axes.plot(step, loss, markevery=max(1, len(step) // 20), **_VALIDATION)
    if not len(run.losses()[0]):
        say(axes, "no losses")


def loss_extent(runs: Sequence[tuple[Run, Sequence[Run]]]) -> Extent:
    """Limits for what `losses` draws of each of these."""
    evaluations = [one.evaluations()[1] for run, others in runs for one in (run, *others)]
    return Extent.of([*evaluations, *(run.losses()[1] for run, _ in runs)])


def loss_keys() -> list[Line2D]:
    """Legend entries for the two losses."""
    return [key("training loss", **_TRAINING | {"linewidth": 2}), key("validation loss", **_VALIDATION)]


_TRAINING: dict[str, Any] = {"color": style.LIGHT, "linewidth": style.LINE}
_VALIDATION: dict[str, Any] = {"color": style.BLUE, "linewidth": style.HEAVY, "marker": "o", "markersize": 4}


def over_heads(values: np.ndarray, how: Literal["median", "max"] = "median") -> np.ndarray:
    """(S, L, G) → (S,): the median or the max over layers and heads; NaN at steps where none is defined."""
    flat = values.reshape(len(values), -1)
    result = np.full(len(values), np.nan)
    defined = np.isfinite(flat).any(axis=1)
    reduce = np.nanmax if how == "max" else np.nanmedian
    result[defined] = reduce(flat[defined], axis=1)
    return result


def head_of_row(axes: Axes, title: str, run: Run) -> None:
    """Over the first panel of a row what it shows, and beside it why that isn't whole."""
    words = axes.text(0, 1.06, title, transform=axes.transAxes, weight="bold", va="bottom")
    if run.trouble:
        beside: Any = {"xycoords": words, "va": "bottom", "annotation_clip": False}
        scale = " (own scale)" if run.state == "diverged" else ""
        axes.annotate(f"   {run.trouble}{scale}", (1, 0), color=style.VERMILLION, **beside)


def mark_events(axes: Axes, steps: Sequence[int]) -> None:
    """A short thin tick at the foot of the panel for each rebalancing."""
    ticks = [[(step, 0.0), (step, 0.05)] for step in steps]
    axes.add_collection(
        LineCollection(ticks, colors=style.INK, linewidths=0.7, transform=axes.get_xaxis_transform(), zorder=3),
        autolim=False,
    )


def mark_stop(axes: Axes, run: Run) -> None:
    """A dotted line where a run broke off."""
    if run.stopped is not None:
        axes.axvline(run.stopped, color=style.VERMILLION, linewidth=1, linestyle=":", zorder=3)


def say(axes: Axes, text: str, colour: str = style.MUTED) -> None:
    """Words in place of data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=colour)


def step_axis(axes: Axes, steps: int, labelled: bool = True) -> None:
    """x from 0 to the last step, with numbers and a name only where asked."""
    axes.set_xlim(-0.02 * steps, 1.02 * steps)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.tick_params(labelbottom=labelled)
    if labelled:
        axes.set_xlabel("step")


def layer_keys(layers: int, most: int = 8) -> list[Line2D]:
    """Legend entries for the layers; of many layers some, evenly spread, the first and the last among them."""
    shown = np.unique(np.linspace(0, layers - 1, min(layers, most)).round().astype(int))
    colours = style.layers(layers)
    return [Line2D([], [], color=colours[i], linewidth=2.5, label=f"layer {i}") for i in shown]


def key(label: str, **look: Any) -> Line2D:
    """One legend entry."""
    return Line2D([], [], label=label, **look)


def no_heads(runs: Sequence[Run]) -> str:
    """What to tell a user whose runs have no rows in the table `heads`."""
    return f"{runs[0].path}: no metrics of the heads (metrics/heads), which collect=paper would record"
