"""Fig. 2: how the cases train, and how their updates move along the directions that mean nothing.

One row a case; columns loss, ρ, β, τ, μ; one line for each layer and head, coloured by layer. Panels of a column share
their scale, so that rows can be compared; a run that diverged has its own, since it would flatten all others.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identcli.figures import panel, rho_panel, style
from identcli.figures.cases import Case, cases
from identcli.figures.data import Layered, Run, with_rebalancings
from identcli.figures.extent import Extent
from identcli.figures.paired_loss import differences
from identcli.figures.picture import Picture, Unsupported

TITLES = {
    "loss": "loss (nats)",
    "rho": rho_panel.TITLE,
    "beta": "β = ‖C‖",
    "tau": "τ = tr C",
    "mu": "μ: least sum of eigenvalues",
}
MEASURED = (*rho_panel.COLUMNS, "beta", "tau", "mu")
MOST_ROWS = 12

# Inches: the page, a panel's height, the margins, the gaps between columns and between rows.
WIDTH, PANEL, TOP, BOTTOM, LEFT, RIGHT, GAP, HEADER = 16.0, 1.84, 1.40, 0.62, 0.65, 0.30, 0.62, 0.50


def draw(runs: Sequence[Run]) -> Picture:
    """A row for each case among the runs. Unsupported when no run has measured its heads."""
    rows = cases(runs)
    measured = [case.run.heads(MEASURED) for case in rows]
    if not any(measured):
        raise Unsupported(panel.no_heads(runs))
    notes = [*_remarks(rows), *differences(runs)]
    if len(rows) > MOST_ROWS:
        notes.append(f"only the first {MOST_ROWS} of {len(rows)} cases are shown: name fewer runs to see the others")
        rows, measured = rows[:MOST_ROWS], measured[:MOST_ROWS]
    figure, panels = style.grid(len(rows), len(TITLES), WIDTH, PANEL, (LEFT, RIGHT, TOP, BOTTOM), (GAP, HEADER))
    steps = max(case.run.steps for case in rows)
    shared = _extents(
        [(case, heads) for case, heads in zip(rows, measured, strict=True) if case.run.state != "diverged"]
    )
    for row, case, heads in zip(panels, rows, measured, strict=True):
        scale = _extents([(case, heads)]) if case.run.state == "diverged" else shared
        _row(dict(zip(TITLES, row, strict=True)), case, heads, scale)
        for axes in row:
            panel.step_axis(axes, steps, labelled=axes in panels[-1])
    for axes, title in zip(panels[0], TITLES.values(), strict=True):
        axes.set_title(title, pad=28)
    if remark := shared["rho"].remark("ρ"):
        notes.append(remark)
    _legend(figure, max(heads.layers for heads in measured if heads), any(case.run.rebalancings() for case in rows))
    return Picture(figure, notes)


def _extents(rows: Sequence[tuple[Case, Layered | None]]) -> dict[str, Extent]:
    """For each column the limits that hold all of these rows. β, τ and μ show 0 as well, which means something."""
    heads = [(case.run, found) for case, found in rows if found]
    before = [event.before for case, _ in rows for event in case.run.rebalancings()]
    zero = np.zeros(1)
    return {
        "loss": panel.loss_extent([(case.run, case.seeds) for case, _ in rows]),
        "rho": rho_panel.extent(heads),
        "beta": Extent.of([*(found["beta"] for _, found in heads), *before, zero]),
        "tau": Extent.of([*(found["tau"] for _, found in heads), zero]),
        "mu": Extent.of([*(found["mu"] for _, found in heads), zero]),
    }


def _row(panels: dict[str, Axes], case: Case, heads: Layered | None, scale: dict[str, Extent]) -> None:
    run = case.run
    rebalancings = run.rebalancings()
    panel.head_of_row(panels["loss"], case.title, run)
    panel.losses(panels["loss"], run, case.seeds)
    for name, axes in panels.items():
        scale[name].apply(axes)
        panel.mark_events(axes, [event.step for event in rebalancings])
        panel.mark_stop(axes, run)
        if heads is None and name != "loss":
            panel.say(axes, "no metrics")
    if heads is not None:
        rho_panel.draw(panels["rho"], run, heads, scale["rho"])
        panel.head_lines(panels["beta"], *with_rebalancings(heads.step, heads["beta"], rebalancings))
        panel.head_lines(panels["tau"], heads.step, heads["tau"])
        panel.head_lines(panels["mu"], heads.step, heads["mu"])


def _legend(figure: Figure, layers: int, rebalanced: bool) -> None:
    """Two lines over the columns: the layers and the losses; what keeps ρ company, and the rebalancings."""
    second = rho_panel.keys()
    if rebalanced:
        tick = {"color": style.INK, "linestyle": "", "marker": "|", "markersize": 8}
        second.append(panel.key("rebalanced, or state cleared", **tick))
    style.legend(figure, [*panel.layer_keys(layers), *panel.loss_keys()], down=0.12)
    style.legend(figure, second, down=0.42)


def _remarks(rows: Sequence[Case]) -> list[str]:
    """Which learning rates are left out, how far seeds lie apart, and what isn't whole."""
    remarks = []
    for case in rows:
        if case.other_lrs:
            listed = ", ".join(dict.fromkeys(f"{run.config['lr']:g}" for run in case.other_lrs))
            remarks.append(f"{case.title}: the first of its learning rates is drawn; not {listed}")
        finals = [loss[-1] for run in (case.run, *case.seeds) if len(loss := run.evaluations()[1])]
        if len(finals) > 1:
            remarks.append(
                f"{case.title}: final validation loss {np.mean(finals):.3f} in the mean of {len(finals)} seeds, "
                f"{min(finals):.3f} … {max(finals):.3f}; the lines are those of seed {case.run.config['seed']}"
            )
        remarks += [f"{run.path}: {run.trouble}" for run in case.everything if run.trouble]
    return remarks
