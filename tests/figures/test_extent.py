"""Limits of axes, ticks, and the place of an exact zero on a logarithmic axis."""

import numpy as np
from matplotlib.figure import Figure

from identcli.figures.extent import Extent


def test_limits_hold_every_finite_value_and_ignore_the_rest() -> None:
    linear = Extent.of([np.array([1.0, np.nan, 3.0]), np.array([np.inf])])
    assert linear.low < 1 < 3 < linear.high < 4
    log = Extent.of([np.array([1e-8, 1e-2, -1.0])], log=True)
    assert 1e-9 < log.low < 1e-8
    assert 1e-2 < log.high < 1e-1
    assert log.remark("ρ") is None


def test_an_exact_zero_stands_below_all_that_is_positive_and_is_counted() -> None:
    values = np.array([0.0, 1e-9, 1e-3, 0.0, np.nan])
    scale = Extent.of([values], log=True)
    shown = scale.shown(values)
    assert scale.low < shown[0] == scale.foot < 1e-9
    assert shown[1:3].tolist() == [1e-9, 1e-3]
    assert np.isnan(shown[4])
    assert scale.remark("x") == "2 of 4 values of x are exactly 0: drawn at the foot of the log axis"
    axes = Figure().add_subplot()
    scale.apply(axes)
    labels = [axes.yaxis.get_major_formatter()(tick) for tick in axes.get_yticks()]
    assert labels[0] == "0"
    assert "10⁻⁷" in labels or "10⁻⁶" in labels


def test_a_linear_axis_shows_zero_where_it_is() -> None:
    assert Extent.of([np.array([0.0, 1.0])]).shown(np.array([0.0])).tolist() == [0.0]


def test_nothing_to_show_and_a_single_value_still_give_an_axis() -> None:
    for log in (False, True):
        for values in ([], [np.nan], [0.0], [0.25]):
            scale = Extent.of([np.array(values)], log=log)
            assert scale.low < scale.high
            scale.apply(Figure().add_subplot())
