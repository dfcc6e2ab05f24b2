"""Audits of checkpoints: imbalance as maps of layers × kv groups, spectra of the products, and a series by step.

Axes: L layers, G kv groups. What an audit leaves undefined is NaN and stays white.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from identcli.figures import style
from identcli.figures.panel import layer_keys
from identcli.figures.picture import Picture, Unsupported
from identcli.store import audits

MOST_ROWS = 8  # checkpoints on one page of maps
_WIDTH, _PANEL = 10.0, 2.3


@dataclass(frozen=True, eq=False)
class Judged:
    """One checkpoint's pairs. columns: arrays over its pairs."""

    path: str
    step: float
    columns: dict[str, np.ndarray]

    @property
    def name(self) -> str:
        return f"step {self.step:.0f}" if np.isfinite(self.step) else Path(self.path).name

    def kinds(self) -> list[tuple[str, str]]:
        """The circuits and parts in it, in order."""
        return list(dict.fromkeys(zip(self.columns["circuit"], self.columns["part"], strict=True)))

    def chosen(self, kind: tuple[str, str]) -> np.ndarray:
        """Which pairs are of that circuit and part."""
        return (self.columns["circuit"] == kind[0]) & (self.columns["part"] == kind[1])

    def grid(self, kind: tuple[str, str], column: str) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the layers (L,), and the column as (L, G)."""
        rows = self.chosen(kind)
        layer, group, values = (self.columns[name][rows] for name in ("layer", "group", column))
        layers, at = np.unique(layer, return_inverse=True)
        table = np.full((len(layers), int(group.max()) + 1), np.nan)
        table[at, group] = values
        return layers, table


def load(paths: Sequence[Path]) -> list[Judged]:
    """The checkpoints in some audit files, those with steps in their order."""
    found = []
    for path in paths:
        columns, _ = audits.read(path)
        for name in dict.fromkeys(columns["checkpoint"]):
            rows = columns["checkpoint"] == name
            own = {column: values[rows] for column, values in columns.items()}
            step = own["step"][0]
            found.append(Judged(name, float("nan") if step is None else float(step), own))
    return sorted(found, key=lambda one: one.step if np.isfinite(one.step) else -1)


def maps(members: Sequence[Judged]) -> Picture:
    """Imbalance of every pair, one row of maps a checkpoint and one column a circuit; all in the same colours."""
    shown = list(members[:MOST_ROWS])
    kinds = list(dict.fromkeys(kind for member in shown for kind in member.kinds()))
    columns = min(len(kinds), 4)
    lines = [(member, kinds[i : i + columns]) for member in shown for i in range(0, len(kinds), columns)]
    figure, panels = style.grid(len(lines), columns, _WIDTH, _PANEL, margins=(0.8, 1.1, 0.75, 0.7), gaps=(0.55, 0.75))
    norm = Normalize(0, max(np.nanmax([np.nanmax(m.columns["imbalance"]) for m in shown]), 1e-12))
    image = None
    for axes_row, (member, some) in zip(panels, lines, strict=True):
        for axes, kind in zip(axes_row, [*some, *[None] * (columns - len(some))], strict=True):
            if kind is None or not member.chosen(kind).any():
                axes.set_axis_off()
                continue
            layers, table = member.grid(kind, "imbalance")
            image = _map(axes, layers, table, norm)
            title = f"{member.name}: {' '.join(kind).strip()}" if len(shown) > 1 else " ".join(kind).strip()
            axes.set_title(title, loc="left")
        axes_row[0].set_ylabel("layer")
    for axes in panels[-1]:
        axes.set_xlabel("kv group")
    assert image is not None
    bar = figure.add_axes((1 - 0.85 / _WIDTH, 0.25, 0.018, 0.5))
    figure.colorbar(image, cax=bar, label="imbalance ‖C‖ / (‖AAᵀ‖ + ‖BBᵀ‖)")
    notes = [f"{len(members) - len(shown)} more checkpoints are not drawn"] if len(members) > len(shown) else []
    return Picture(figure, notes)


def _map(axes: Axes, layers: np.ndarray, table: np.ndarray, norm: Normalize) -> matplotlib.cm.ScalarMappable:
    mesh = axes.pcolormesh(
        np.arange(table.shape[1] + 1) - 0.5, np.arange(len(layers) + 1) - 0.5, table, norm=norm, cmap="viridis"
    )
    axes.grid(False)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.yaxis.set_major_formatter(lambda at, _: str(layers[int(at)]) if 0 <= at < len(layers) else "")
    return mesh


def spectra(members: Sequence[Judged]) -> Picture:
    """Singular values of the products over the largest of each: a line a layer, the median over its kv groups."""
    member = members[-1]
    kinds = member.kinds()
    columns = min(len(kinds), 3)
    rows = -(-len(kinds) // columns)
    figure, panels = style.grid(rows, columns, _WIDTH, 2.8, margins=(0.9, 0.3, 0.8, 0.7), gaps=(0.8, 0.9))
    for axes, kind in zip(panels.flat, [*kinds, *[None] * (rows * columns - len(kinds))], strict=True):
        if kind is None:
            axes.set_axis_off()
            continue
        chosen = member.chosen(kind)
        layer, values = member.columns["layer"][chosen], member.columns["spectrum"][chosen]
        layers = np.unique(layer)
        for colour, number in zip(style.layers(len(layers)), layers, strict=True):
            same = np.stack(values[layer == number])
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = np.median(same / same[:, :1], axis=0)
            axes.plot(np.arange(1, len(relative) + 1), relative, color=colour, linewidth=style.LINE)
        axes.set_yscale("log")
        axes.set_title(" ".join(kind).strip(), loc="left")
        axes.set_xlabel("singular value")
    panels[0][0].set_ylabel("relative to the largest")
    notes = [f"of {len(members)} checkpoints the last one, {member.name}"] if len(members) > 1 else []
    style.legend(figure, layer_keys(len(np.unique(member.columns["layer"]))), 0.15)
    return Picture(figure, notes)


def series(members: Sequence[Judged]) -> Picture:
    """Median imbalance of each circuit by training step, within its range over all pairs. Unsupported without steps."""
    stepped = [member for member in members if np.isfinite(member.step)]
    if len(stepped) < 2:
        raise Unsupported("one checkpoint, or none whose step is known: ident audit --series gives more")
    circuits = list(dict.fromkeys(circuit for member in stepped for circuit, _ in member.kinds()))
    figure, panels = style.grid(1, len(circuits), _WIDTH, 3.0, margins=(0.9, 0.3, 0.5, 0.7), gaps=(0.8, 0.8))
    for axes, circuit in zip(panels[0], circuits, strict=True):
        own = [m.columns["imbalance"][m.columns["circuit"] == circuit] for m in stepped]
        steps = [member.step for member in stepped]
        axes.fill_between(
            steps, *(np.array([how(v) for v in own]) for how in (np.nanmin, np.nanmax)), color=style.LIGHT
        )
        axes.plot(
            steps, [np.nanmedian(v) for v in own], color=style.BLUE, linewidth=style.HEAVY, marker="o", markersize=4
        )
        axes.set_title(circuit, loc="left")
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
    panels[0][0].set_ylabel("imbalance: median and range")
    return Picture(figure)
