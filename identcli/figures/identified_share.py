"""Fig. 1: the identified share of attention weights against head count and head size, with published scores.

The scores are those of Bhojanapalli et al. 2020; the shares are the paper's count, 1 − D/(2E) for C = D.
"""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from identcli.architecture.published import Published, Series, series, source
from identcli.figures import style
from identcli.figures.picture import Picture

WIDTH, PANEL = 11.0, 1.75
MARGINS, GAPS = (1.1, 0.95, 0.8, 1.25), (0.25, 0.3)
READING = (
    "First column: more heads raise the identified share and count, and both scores fall. Third: larger heads\n"
    "lower the share, and both scores rise. Second and fourth: only the count moves, up with the scores.\n"
    "In all but the first the number of parameters grows as well, so the count is not the only cause that could be."
)


def draw() -> Picture:
    """A column for each published series; identified share and weights, SQuAD F1, MNLI. It needs no runs."""
    found = series()
    figure, grid = style.grid(3, len(found), WIDTH, PANEL, MARGINS, GAPS)
    for column, one in enumerate(found):
        share, squad, mnli = grid[:, column]
        share.set_title(one.title, fontsize=11)
        _points(share, one, lambda model: 100 * model.share, style.INK)
        _weights(share, one, last=column == len(found) - 1)
        _points(squad, one, lambda model: model.squad_f1, style.VERMILLION)
        _points(mnli, one, lambda model: model.mnli, style.ORANGE)
        mnli.set_xlabel("heads H" if one.vary == "heads" else "head size D")
    for row, label in enumerate(("identified\nshare, %", "SQuAD F1", "MNLI\naccuracy, %")):
        grid[row, 0].set_ylabel(label)
        grid[row, 0].yaxis.set_label_coords(-0.26, 0.5)
        limits = [axes.get_ylim() for axes in grid[row]]
        for axes in grid[row]:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            axes.tick_params(labelbottom=row == 2, labelleft=axes is grid[row, 0])
    cited = source()
    figure.text(
        0.5,
        1 - 0.12 / figure.get_figheight(),
        f"Identified attention weights and published scores (scores: {cited['source']})",
        ha="center",
        va="top",
        fontsize=12,
    )
    figure.text(0.5, 0.1 / figure.get_figheight(), READING, ha="center", va="bottom", fontsize=10)
    return Picture(figure, [reading(one) for one in found])


def reading(one: Series) -> str:
    """What a series shows, said by its own numbers."""
    first, last = one.models[0], one.models[-1]
    thing = "heads" if one.vary == "heads" else "head size"
    start, end = _value(one, first), _value(one, last)
    return (
        f"{one.title}, {thing} {start} to {end}: identified share {100 * first.share:.1f} to {100 * last.share:.1f} %, "
        f"identified weights a layer {first.identified / 1e6:.2f}M to {last.identified / 1e6:.2f}M, "
        f"{_moves('F1', first.squad_f1, last.squad_f1)}, {_moves('MNLI', first.mnli, last.mnli)}"
    )


def _moves(name: str, first: float, last: float) -> str:
    return f"{name} {'rises' if last > first else 'falls'} {first:g} to {last:g}"


def _value(one: Series, model: Published) -> int:
    return model.attention.heads if one.vary == "heads" else model.attention.qk_size


def _points(axes: Axes, one: Series, of: Callable[[Published], float], colour: str) -> None:
    places = range(len(one.models))
    axes.plot(places, [of(model) for model in one.models], "o-", color=colour, linewidth=style.HEAVY, markersize=5)
    _ticks(axes, places, [str(_value(one, model)) for model in one.models])


def _ticks(axes: Axes, places: Sequence[int], labels: Sequence[str]) -> None:
    axes.set_xticks(places, labels)
    axes.set_xlim(-0.4, len(places) - 0.6)
    axes.margins(y=0.15)


def _weights(axes: Axes, one: Series, last: bool) -> None:
    """Identified weights of one layer as bars behind the share, on a scale of their own that all columns share."""
    bars = axes.twinx()
    axes.set_zorder(bars.get_zorder() + 1)
    axes.patch.set_visible(False)
    places = range(len(one.models))
    bars.bar(places, [model.identified / 1e6 for model in one.models], color=style.BLUE, alpha=0.25, width=0.55)
    bars.set_ylim(0, 18)
    bars.grid(visible=False)
    bars.spines["top"].set_visible(False)
    bars.tick_params(labelright=last, right=last, colors=style.BLUE)
    if last:
        bars.set_ylabel("identified weights\na layer, millions (bars)", color=style.BLUE, fontsize=10)
