"""Fig. 4: gradient descent at several learning rates: how far a step breaks the law that gradient flow obeys.

Rows are learning rates, from the highest; columns loss, ρ and drift, one line for each layer and head. On the right,
drift against learning rate: for each head the median over the steps after the warm-up, and the power law through the
median head. From the same weights one step drifts like lr² exactly; at equal steps the runs have come to different
weights, so the exponent is reported and need not be 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from identcli.figures import panel, rho_panel, style
from identcli.figures.cases import settings
from identcli.figures.data import Layered, Run
from identcli.figures.extent import Extent
from identcli.figures.picture import Picture, Unsupported
from identcli.figures.slope import Slope, power_law

TITLES = {"loss": "loss (nats)", "rho": rho_panel.TITLE, "drift": "drift: ‖change of C in a step‖"}
MEASURED = (*rho_panel.COLUMNS, "drift", "drift_floor")
NEAR_FLOOR = 2.0  # a median drift below this many floors is rounding for a good part
FEWEST_ROWS = 2  # fewer leave no room for the panel on the right

# Inches: the page, a panel's height, the margins, the gaps between columns and between rows.
WIDTH, PANEL, TOP, BOTTOM, LEFT, RIGHT, GAP, HEADER = 15.0, 1.9, 1.40, 0.62, 0.65, 0.2, 0.75, 0.42
SIDE = 4.4  # of the page's width, kept for drift against learning rate


@dataclass(frozen=True)
class Rate:
    """One row: a learning rate with its runs, one for each seed; of the first the lines are drawn."""

    title: str
    runs: list[Run]
    heads: Layered | None

    @property
    def run(self) -> Run:
        return self.runs[0]


def draw(runs: Sequence[Run]) -> Picture:
    """The sweep among the runs: that of plain SGD, else any with two learning rates. Unsupported when there is none."""
    sweep, others = _sweep(runs)
    rates = _rates(sweep)
    if not any(rate.heads for rate in rates):
        raise Unsupported(panel.no_heads(sweep))
    rows = max(FEWEST_ROWS, len(rates))
    figure, panels = style.grid(
        rows, len(TITLES), WIDTH, PANEL, (LEFT, RIGHT + SIDE, TOP, BOTTOM), (GAP, HEADER), used=len(rates)
    )
    steps = max(rate.run.steps for rate in rates)
    shared = _extents([rate for rate in rates if rate.run.state != "diverged"])
    for row, rate in zip(panels, rates, strict=False):
        scale = _extents([rate]) if rate.run.state == "diverged" else shared
        _row(dict(zip(TITLES, row, strict=True)), rate, scale)
        for axes in row:
            panel.step_axis(axes, steps, labelled=axes in panels[len(rates) - 1])
    for axes, title in zip(panels[0], TITLES.values(), strict=True):
        axes.set_title(title, pad=28)
    height = figure.get_figheight()
    # Two rows high, and in any case with room for its legend below.
    side_height = min(PANEL * 2 + HEADER, height - TOP - BOTTOM - 0.9)
    box = (
        1 - (SIDE - GAP - 0.1) / WIDTH,
        1 - (TOP + side_height) / height,
        (SIDE - GAP - 0.3) / WIDTH,
        side_height / height,
    )
    notes = _drift_against_rate(figure.add_axes(box), rates)
    layers = max(rate.heads.layers for rate in rates if rate.heads)
    style.legend(figure, [*panel.layer_keys(layers), *panel.loss_keys()], down=0.12)
    style.legend(figure, [*rho_panel.keys(), panel.key("drift by rounding alone", **FLOOR)], down=0.42)
    notes += [remark for name in ("rho", "drift") if (remark := shared[name].remark(name))]
    notes += [f"{run.path}: {run.trouble}" for rate in rates for run in rate.runs if run.trouble]
    if others:
        notes.append(f"another learning-rate sweep ({', '.join(others)}) is left out: name its runs alone to see it")
    return Picture(figure, notes)


FLOOR: dict[str, Any] = {"color": style.INK, "linewidth": 1.1, "linestyle": style.DOTTED, "zorder": 3}


def _sweep(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs of the sweep to draw, and what other sweeps there are."""
    groups = [group for group in settings(runs) if len({run.config["lr"] for run in group if run.config}) > 1]
    if not groups:
        lrs = sorted({run.config["lr"] for run in runs if run.config})
        listed = ", ".join(f"{lr:g}" for lr in lrs) or "none"
        raise Unsupported(
            f"{runs[0].path}: no two learning rates of one setting (there: {listed}), as a sweep over lr gives them"
        )
    first, *others = sorted(groups, key=lambda group: group[0].case != "sgd")
    return first, [group[0].title for group in others]


def _rates(sweep: Sequence[Run]) -> list[Rate]:
    rates: dict[float, list[Run]] = {}
    for run in sweep:
        if run.config:
            rates.setdefault(run.config["lr"], []).append(run)
    rows = [
        Rate(f"{group[0].title}, lr {lr:g}", group, group[0].heads(MEASURED))
        for lr, group in sorted(rates.items(), reverse=True)
    ]
    return rows + [Rate(run.title, [run], None) for run in sweep if not run.config]


def _extents(rates: Sequence[Rate]) -> dict[str, Extent]:
    measured = [(rate.run, rate.heads) for rate in rates if rate.heads]
    floors = [panel.over_heads(heads["drift_floor"]) for _, heads in measured]
    return {
        "loss": panel.loss_extent([(rate.run, rate.runs[1:]) for rate in rates]),
        "rho": rho_panel.extent(measured),
        "drift": Extent.of([*(heads["drift"] for _, heads in measured), *floors], log=True),
    }


def _row(panels: dict[str, Axes], rate: Rate, scale: dict[str, Extent]) -> None:
    panel.head_of_row(panels["loss"], rate.title, rate.run)
    panel.losses(panels["loss"], rate.run, rate.runs[1:])
    for name, axes in panels.items():
        scale[name].apply(axes)
        panel.mark_stop(axes, rate.run)
        if rate.heads is None and name != "loss":
            panel.say(axes, "no metrics")
    if rate.heads is not None:
        rho_panel.draw(panels["rho"], rate.run, rate.heads, scale["rho"])
        panel.head_lines(panels["drift"], rate.heads.step, scale["drift"].shown(rate.heads["drift"]), noisy=True)
        panel.curve(panels["drift"], rate.heads.step, panel.over_heads(rate.heads["drift_floor"]), **FLOOR)


@dataclass(frozen=True)
class _Typical:
    """Of one learning rate the median over steps of the drift, by seed, layer and head, and of the rounding floor."""

    lr: float
    heads: np.ndarray  # (seeds, L, G)
    floor: float

    @property
    def median(self) -> float:
        return float(np.nanmedian(self.heads))


def typical(rates: Sequence[Rate]) -> tuple[list[_Typical], int, int]:
    """The drift of each learning rate over steps first … last, which all finished runs recorded after their warm-up.

    Answers with first and last as well. A run that isn't whole is left out: its steps are not those of the rest.
    """
    whole = [[run for run in rate.runs if run.state == "finished"] for rate in rates]
    tables = [[table for run in runs if (table := run.heads(("drift", "drift_floor")))] for runs in whole]
    flat = [table for of_one in tables for table in of_one]
    if not flat:
        return [], 0, 0
    first = max(run.config["schedule"]["warmup"] for runs in whole for run in runs)
    last = min(int(table.step[-1]) for table in flat)
    points = []
    for rate, of_one in zip(rates, tables, strict=True):
        kept = [part for table in of_one if len((part := table.between(first, last)).step)]
        drifts = [_median_over_steps(part["drift"]) for part in kept]
        if kept and np.isfinite(np.stack(drifts)).any():
            floors = np.concatenate([part["drift_floor"].ravel() for part in kept])
            floor = float(np.nanmedian(floors)) if np.isfinite(floors).any() else np.nan
            points.append(_Typical(rate.run.config["lr"], np.stack(drifts), floor))
    return points, first, last


def _median_over_steps(drift: np.ndarray) -> np.ndarray:
    """(S, L, G) → (L, G); NaN for a head without any value."""
    _, layers, heads = drift.shape
    return panel.over_heads(drift.transpose(1, 2, 0).reshape(layers * heads, -1)).reshape(layers, heads)


def _drift_against_rate(axes: Axes, rates: Sequence[Rate]) -> list[str]:
    """The panel on the right. Answers with what there is to say about the exponent."""
    points, first, last = typical(rates)
    slope = power_law([point.lr for point in points], [point.median for point in points])
    axes.set_title("drift against learning rate", pad=28)
    if slope is None:
        axes.set_axis_off()
        panel.say(axes, "no two learning rates with\nfinished, measured runs")
        return ["no exponent of drift against learning rate: it takes two learning rates with finished, measured runs"]
    _points(axes, points)
    lr = np.array([point.lr for point in points])
    ends = np.array([lr.min(), lr.max()])
    middle = np.exp(np.log(lr).mean())
    axes.plot(ends, slope.at(ends), color=style.INK, linewidth=style.HEAVY, zorder=3)
    square = slope.at(middle) * (ends / middle) ** 2
    axes.plot(ends, square, color=style.MUTED, linewidth=1, linestyle=style.DASHED, zorder=2)
    axes.plot(lr, [point.floor for point in points], **FLOOR)
    Extent.of([*(p.heads for p in points), np.array([p.floor for p in points]), square], log=True).apply(axes)
    axes.set_xscale("log")
    axes.set_xlim(ends[0] / 1.4, ends[1] * 1.4)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(lr))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("learning rate")
    entries = [
        panel.key("median head", color=style.INK, linestyle="", marker="o", markersize=7, markerfacecolor="white"),
        panel.key(f"lrᵖ, p = {slope}", color=style.INK, linewidth=style.HEAVY),
        panel.key("lr²", color=style.MUTED, linewidth=1, linestyle=style.DASHED),
    ]
    axes.legend(handles=entries, loc="upper left", bbox_to_anchor=(-0.02, -0.17), borderpad=0)
    return [_exponent(slope, first, last), *_near_floor(points)]


def _points(axes: Axes, points: Sequence[_Typical]) -> None:
    """A dot for each head in its layer's colour, and the median head on top."""
    for point in points:
        seeds, layers, heads = point.heads.shape
        colours = np.tile(np.repeat(style.layers(layers), heads), seeds)
        axes.scatter(
            np.full(point.heads.size, point.lr), point.heads.ravel(), c=list(colours), s=14, alpha=0.8, linewidths=0
        )
        axes.plot(point.lr, point.median, color=style.INK, marker="o", markersize=7, markerfacecolor="white", zorder=4)


def _exponent(slope: Slope, first: int, last: int) -> str:
    if np.isnan(slope.low):
        return f"drift ~ lr^{slope.exponent:.1f} (two learning rates: no interval; steps {first}–{last})"
    return f"drift ~ lr^{slope.exponent:.1f} (95 %: {slope.low:.1f} … {slope.high:.1f}; steps {first}–{last})"


def _near_floor(points: Sequence[_Typical]) -> list[str]:
    close = [f"{point.lr:g}" for point in points if point.median < NEAR_FLOOR * point.floor]
    if not close:
        return []
    return [f"at lr {', '.join(close)} the median drift lies within {NEAR_FLOOR:g}× of what rounding alone gives"]
