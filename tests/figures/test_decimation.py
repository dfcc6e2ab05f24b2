"""Decimation against brute force: every bin keeps its least and its greatest value, at their own steps."""

import numpy as np
import pytest

from identcli.figures.decimation import decimate


@pytest.mark.parametrize("rows", [23, 24, 100, 101, 997])
@pytest.mark.parametrize("gaps", [False, True])
def test_every_bin_keeps_its_extremes(rows: int, gaps: bool) -> None:
    rng = np.random.default_rng(rows)
    step = np.arange(rows) * 10
    values = rng.standard_normal((rows, 3))
    if gaps:
        values[rng.random((rows, 3)) < 0.3] = np.nan
    bins = 10
    x, y = decimate(step, values, bins)
    assert len(x) <= 2 * bins + 2
    width = -(-(rows - 2) // bins)
    for line in range(3):
        stored = dict(zip(step.tolist(), values[:, line].tolist(), strict=True))
        assert np.all(np.diff(x[:, line]) >= 0)
        for at, value in zip(x[:, line], y[:, line], strict=True):
            assert stored[int(at)] == value or (np.isnan(value) and np.isnan(stored[int(at)]))
        for start in range(1, rows - 1, width):
            inside = values[start : min(start + width, rows - 1), line]
            shown = y[(x[:, line] >= step[start]) & (x[:, line] <= step[min(start + width, rows - 1) - 1]), line]
            if np.isnan(inside).all():
                assert np.isnan(shown).all()
            else:
                assert np.nanmin(shown) == np.nanmin(inside)
                assert np.nanmax(shown) == np.nanmax(inside)
        assert (x[0, line], x[-1, line]) == (step[0], step[-1])


def test_few_rows_pass_unchanged() -> None:
    values = np.arange(44.0).reshape(22, 2)
    x, y = decimate(np.arange(22), values, bins=10)
    assert np.array_equal(y, values)
    assert np.array_equal(x[:, 1], np.arange(22))


def test_one_spike_survives_where_every_kth_row_would_lose_it() -> None:
    values = np.zeros((100_000, 1))
    values[54_321] = 7.0
    x, y = decimate(np.arange(100_000), values)
    assert y.max() == 7.0
    assert x[y[:, 0].argmax(), 0] == 54_321
    assert values[:: 100_000 // len(y)].max() == 0.0


def test_a_gap_at_the_end_stays_a_gap() -> None:
    values = np.ones((1003, 1))
    values[900:] = np.nan
    x, y = decimate(np.arange(1003), values, bins=10)
    # Bins of 101 rows: the one that straddles row 900 keeps its numbers, those past it stay a gap.
    assert np.isnan(y[x >= 1000]).all()
    assert np.nanmax(x[np.isfinite(y)]) < 1000
