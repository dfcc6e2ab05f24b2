"""Fewer points, the same picture: of each bin of rows only the least and the greatest value are kept.

A bin is at most about a pixel wide, so a line through all rows would paint the column between its two extremes; the
line through the two paints the same. Peaks, troughs and the sawtooth of a rebalancing survive, which a mean or every
k-th row would lose.
"""

import numpy as np

BINS = 240  # a panel of Fig. 2 is 2.4 inches wide: 100 bins an inch, finer than its lines are


def decimate(step: np.ndarray, values: np.ndarray, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
    """(S,), (S, K) → x, y, both (S', K) with S' ≤ 2·bins + 2: for each of K lines its own points, in order of steps.

    Bins hold equal numbers of rows, in the order given. The first and the last row are always kept. A NaN hides
    inside a bin that also has numbers; a bin of NaN alone stays one, so gaps wider than a bin stay gaps.
    Nothing is dropped while S ≤ 2·bins + 2.
    """
    rows, lines = values.shape
    if rows <= 2 * bins + 2:
        return np.broadcast_to(np.asarray(step, float)[:, None], values.shape), values
    width = -(-(rows - 2) // bins)
    full = -(-(rows - 2) // width)
    padded = np.full((full * width, lines), np.nan, values.dtype)
    padded[: rows - 2] = values[1:-1]
    binned = padded.reshape(full, width, lines)
    missing = np.isnan(binned)
    least = np.where(missing, np.inf, binned).argmin(axis=1)
    greatest = np.where(missing, -np.inf, binned).argmax(axis=1)
    picked = np.stack([np.minimum(least, greatest), np.maximum(least, greatest)], axis=1)
    picked += np.arange(full)[:, None, None] * width + 1
    # A last bin of NaN alone may point into the padding: any of its rows will do.
    picked = np.minimum(picked, rows - 2).reshape(2 * full, lines)
    ends = np.zeros((1, lines), picked.dtype)
    picked = np.concatenate([ends, picked, ends + rows - 1])
    return np.asarray(step, float)[picked], np.take_along_axis(values, picked, axis=0)
