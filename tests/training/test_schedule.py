import math

import pytest

from identcli.training.schedule import WarmupCosine


def test_warms_up_to_lr_and_ends_at_a_tenth():
    rate = WarmupCosine(lr=2.0, steps=500, warmup=100, min_ratio=0.1)
    assert rate(0) == pytest.approx(2.0 / 101)
    assert rate(99) == pytest.approx(2.0 * 100 / 101)
    assert rate(100) == pytest.approx(2.0)
    assert rate(300) == pytest.approx(0.2 + 1.8 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert rate(500) == pytest.approx(0.2)
    assert rate(10_000) == pytest.approx(0.2)


def test_fewer_steps_than_the_warm_up_never_reach_lr():
    rate = WarmupCosine(lr=1.0, steps=10, warmup=100)
    assert max(rate(step) for step in range(10)) < 0.1


def test_no_warm_up_starts_at_lr():
    assert WarmupCosine(lr=1.0, steps=10, warmup=0)(0) == 1.0
