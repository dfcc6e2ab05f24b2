"""How often to rebalance: the loss, and how far β comes between two rebalancings, for each interval.

Above, the validation loss by step and its final value against the interval, with plain training for comparison; below,
one panel an interval with β of every layer and head, which falls to what the event's record says at each rebalancing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from identcli.figures import panel, style
from identcli.figures.data import Layered, Rebalancing, Run, with_rebalancings
from identcli.figures.extent import Extent
from identcli.figures.picture import Picture, Unsupported

ACROSS = 4

# Inches: the page, the panels' heights, the margins, the gaps between columns and between rows.
WIDTH, UPPER, LOWER, TOP, BOTTOM, LEFT, RIGHT, GAP, HEADER = 15.0, 3.0, 2.3, 0.5, 0.62, 0.75, 0.2, 0.75, 0.75
BETWEEN = 1.35  # from the upper panels to the lower: an axis label, a legend, a title


@dataclass(frozen=True)
class Interval:
    """One interval with its runs, one for each seed; β is drawn for the first."""

    every: int
    runs: list[Run]
    heads: Layered | None
    rebalancings: list[Rebalancing]

    @property
    def run(self) -> Run:
        return self.runs[0]


def draw(runs: Sequence[Run]) -> Picture:
    """The intervals among the runs. Unsupported with fewer than two of one setting, or when none has measured β."""
    chosen, plain = _sweep(runs)
    intervals = _intervals(chosen)
    if not any(interval.heads for interval in intervals):
        raise Unsupported(panel.no_heads(chosen))
    across = min(ACROSS, len(intervals))
    down = -(-len(intervals) // across)
    height = TOP + UPPER + BETWEEN + down * LOWER + (down - 1) * HEADER + BOTTOM
    figure = style.new_figure(WIDTH, height)
    upper_foot = 1 - (TOP + UPPER) / height
    upper = figure.add_gridspec(
        1, 2, width_ratios=[1.6, 1], left=LEFT / WIDTH, right=1 - RIGHT / WIDTH, top=1 - TOP / height, bottom=upper_foot
    )
    _loss_curves(figure.add_subplot(upper[0]), intervals, plain)
    notes = _final_losses(figure.add_subplot(upper[1]), intervals, plain)
    lower = figure.add_gridspec(
        down,
        across,
        left=LEFT / WIDTH,
        right=1 - RIGHT / WIDTH,
        top=upper_foot - BETWEEN / height,
        bottom=BOTTOM / height,
        hspace=HEADER / LOWER,
        wspace=0.2,
    )
    shared = _beta_extent([interval for interval in intervals if interval.run.state != "diverged"])
    for index, interval in enumerate(intervals):
        axes = figure.add_subplot(lower[divmod(index, across)])
        scale = _beta_extent([interval]) if interval.run.state == "diverged" else shared
        scale.apply(axes)
        _sawtooth(axes, interval)
        panel.step_axis(axes, interval.run.steps)
        if index % across == 0:
            axes.set_ylabel("β = ‖C‖")
    layers = max(interval.heads.layers for interval in intervals if interval.heads)
    style.legend(figure, panel.layer_keys(layers), down=TOP + UPPER + 0.58)
    notes += [f"{run.path}: {run.trouble}" for interval in intervals for run in interval.runs if run.trouble]
    return Picture(figure, notes)


def _sweep(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The rebalanced runs that differ only by interval and seed, and the runs alike but never rebalanced."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        if run.config and run.config["rebalance"]["mode"] == "on":
            rest = {key: value for key, value in run.config["rebalance"].items() if key != "every"}
            groups.setdefault((run.identity("seed", "rebalance"), str(sorted(rest.items()))), []).append(run)
    for group in groups.values():
        if len({_every(run) for run in group}) > 1:
            alike = group[0].identity("seed", "rebalance")
            plain = [run for run in runs if run.config and run.config["rebalance"]["mode"] == "off"]
            return group, [run for run in plain if run.identity("seed", "rebalance") == alike]
    raise Unsupported(f"{runs[0].path}: no two intervals of rebalancing, as a sweep over rebalance.every gives them")


def _intervals(runs: Sequence[Run]) -> list[Interval]:
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(_every(run), []).append(run)
    return [
        Interval(every, group, group[0].heads(("beta",)), group[0].rebalancings())
        for every, group in sorted(found.items())
    ]


def _every(run: Run) -> int:
    return int(run.config["rebalance"]["every"])


def _loss_curves(axes: Axes, intervals: Sequence[Interval], plain: Sequence[Run]) -> None:
    """Validation loss by step: of each interval the first seed, the others faint; plain training dashed."""
    axes.set_title("validation loss (nats)")
    for interval, colour in zip(intervals, style.intervals(len(intervals)), strict=True):
        for run in interval.runs[1:]:
            axes.plot(*run.evaluations(), color=colour, linewidth=style.LINE, alpha=0.4)
        label = f"every {interval.every}" + (f" ({interval.run.trouble})" if interval.run.trouble else "")
        axes.plot(
            *interval.run.evaluations(), color=colour, linewidth=style.HEAVY, marker="o", markersize=4, label=label
        )
    for run in plain[:1]:
        axes.plot(*run.evaluations(), color=style.INK, linewidth=1.2, linestyle=style.DASHED, label="never")
    shown = [run for interval in intervals for run in interval.runs if run.state != "diverged"]
    Extent.of([run.evaluations()[1] for run in [*shown, *plain]]).apply(axes)
    panel.step_axis(axes, max(interval.run.steps for interval in intervals))
    axes.legend(loc="upper right", title="rebalanced")


def _final_losses(axes: Axes, intervals: Sequence[Interval], plain: Sequence[Run]) -> list[str]:
    """The final validation loss of every finished run against its interval, and a line of text for each interval."""
    axes.set_title("final validation loss (nats)")
    every, means, notes, shown = [], [], [], []
    for interval, colour in zip(intervals, style.intervals(len(intervals)), strict=True):
        finals = _finals(interval.runs)
        if len(finals):
            axes.plot(
                [interval.every] * len(finals), finals, color=colour, linestyle="", marker="o", markersize=6, zorder=3
            )
            every.append(interval.every)
            means.append(finals.mean())
            shown.append(finals)
        notes.append(_line(interval, finals))
    axes.plot(every, means, color=style.MUTED, linewidth=1.0, zorder=2)
    never = _finals(plain)
    if len(never):
        axes.axhline(never.mean(), color=style.INK, linewidth=1.2, linestyle=style.DASHED)
        axes.text(0.99, never.mean(), "never", transform=axes.get_yaxis_transform(), ha="right", va="bottom")
    Extent.of([*shown, never]).apply(axes)
    axes.set_xscale("log")
    axes.set_xlim(intervals[0].every / 1.4, intervals[-1].every * 1.8)
    axes.xaxis.set_major_locator(FixedLocator([interval.every for interval in intervals]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("steps between rebalancings")
    if not shown:
        panel.say(axes, "no finished run")
    return notes


def _finals(runs: Sequence[Run]) -> np.ndarray:
    return np.array([loss[-1] for run in runs if run.state == "finished" and len(loss := run.evaluations()[1])])


def _line(interval: Interval, finals: np.ndarray) -> str:
    """β at the end of an interval, from the records of the events, and the loss."""
    peaks = [event.before for event in interval.rebalancings]
    beta = f"β {np.nanmedian(peaks):.3f} before a rebalancing (median head)" if peaks else "never rebalanced"
    loss = "no finished run"
    if len(finals):
        loss = f"final validation loss {finals.mean():.4f}" + (
            f" (mean of {len(finals)} seeds)" if len(finals) > 1 else ""
        )
    return f"every {interval.every}: {beta}, {loss}"


def _beta_extent(intervals: Sequence[Interval]) -> Extent:
    before = [event.before for interval in intervals for event in interval.rebalancings]
    return Extent.of([*(interval.heads["beta"] for interval in intervals if interval.heads), *before, np.zeros(1)])


def _sawtooth(axes: Axes, interval: Interval) -> None:
    axes.set_title(f"rebalanced every {interval.every}", pad=22 if interval.run.trouble else None)
    panel.mark_stop(axes, interval.run)
    panel.mark_events(axes, [event.step for event in interval.rebalancings])
    if interval.run.trouble:
        axes.text(
            0.5, 1.02, interval.run.trouble, transform=axes.transAxes, color=style.VERMILLION, ha="center", va="bottom"
        )
    if interval.heads is None:
        panel.say(axes, "no metrics")
    else:
        panel.head_lines(axes, *with_rebalancings(interval.heads.step, interval.heads["beta"], interval.rebalancings))
