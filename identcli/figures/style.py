"""One style for all figures: sizes in inches and points, colours, and matplotlib's settings, whatever the user's are.

Layers are told apart by lightness as well as by hue (a stretch of viridis without its palest end, which vanishes on
white paper), so they survive a photocopy and every kind of colour-blindness. The few other colours are Okabe and Ito's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

INK = "#222222"  # text and the main line of a panel that has no layers
MUTED = "#8a8a8a"  # what is there for comparison
LIGHT = "#bdbdbd"  # what must not get in the way
BLUE, ORANGE, VERMILLION = "#0072b2", "#e69f00", "#d55e00"

DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.5))
LINE, HEAVY = 0.8, 1.6  # points: one head among many; a line that must stand out

# Any: matplotlib's own type lists every name, and differs by version.
_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine has it, Greek included
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titley": 1.0,  # or matplotlib measures every tick label to find a place
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 11,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.6,
    "axes.formatter.limits": (-3, 4),
    "legend.frameon": False,
    "lines.solid_joinstyle": "bevel",  # mitred joins overshoot a peak by many line widths
    "savefig.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def applied() -> Iterator[None]:
    """This style and nothing of the user's, for the time being; afterwards matplotlib is as it was."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def layers(count: int) -> list[str]:
    """A colour for each layer, dark to light from the first."""
    return _ramp("viridis", 0.86, count)


def intervals(count: int) -> list[str]:
    """A colour for each interval, dark to light from the shortest; not to be taken for those of the layers."""
    return _ramp("plasma", 0.8, count)


def _ramp(name: str, end: float, count: int) -> list[str]:
    """Evenly spaced colours of a perceptually uniform map up to `end`, past which they vanish on white paper."""
    return [to_hex(colour) for colour in matplotlib.colormaps[name](np.linspace(0, end, max(count, 2))[:count])]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, which pyplot doesn't know of."""
    return Figure(figsize=(width, height))


def grid(
    rows: int,
    columns: int,
    width: float,
    panel: float,
    margins: tuple[float, float, float, float],
    gaps: tuple[float, float],
    used: int | None = None,
) -> tuple[Figure, np.ndarray]:
    """A figure with rows × columns panels; only the first `used` rows get any, the others stay empty paper.

    All lengths are inches: the page's width, a panel's height, margins (left, right, top, bottom), gaps (between
    columns, between rows).
    """
    (left, right, top, bottom), (across, down) = margins, gaps
    height = top + bottom + rows * panel + (rows - 1) * down
    figure = new_figure(width, height)
    panel_width = (width - left - right - across * (columns - 1)) / columns
    spec = figure.add_gridspec(
        rows,
        columns,
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        wspace=across / panel_width,
        hspace=down / panel,
    )
    cells = [[figure.add_subplot(spec[row, column]) for column in range(columns)] for row in range(used or rows)]
    return figure, np.array(cells, dtype=object)


def legend(figure: Figure, entries: Sequence[Artist], down: float) -> None:
    """One centred line of legend entries, that many inches below the upper edge."""
    at = (0.5, 1 - down / figure.get_figheight())
    figure.legend(handles=entries, ncols=len(entries), loc="upper center", bbox_to_anchor=at, borderpad=0)
