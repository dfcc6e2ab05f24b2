"""The figure of the experiment `intervals`."""

from pathlib import Path

import numpy as np
import pytest

from figures.synthetic import config, write
from identcli.figures import rebalancing_intervals, style
from identcli.figures.data import load, with_rebalancings
from identcli.figures.picture import Picture, Unsupported


def drawn(*paths: Path) -> Picture:
    with style.applied():
        return rebalancing_intervals.draw(load(paths))


def test_panels_show_losses_and_the_sawtooth_of_each_interval(tmp_path: Path) -> None:
    for every in (40, 20):
        for seed in (1, 2):
            settings = config("adamw_rebalanced", rebalance__every=every, seed=seed)
            write(tmp_path / f"{every}-{seed}", settings)
    write(tmp_path / "plain", config("adamw", seed=1))
    write(tmp_path / "other", config("adamw", seed=1, batch_size=1))
    picture = drawn(tmp_path)
    curves, final, first, second = picture.figure.axes
    finals = {every: [_final(tmp_path / f"{every}-{seed}") for seed in (1, 2)] for every in (20, 40)}
    points = {line.get_xdata()[0]: list(line.get_ydata()) for line in final.lines if line.get_marker() == "o"}
    assert points == finals
    means = next(line for line in final.lines if line.get_marker() != "o")
    np.testing.assert_allclose(means.get_ydata(), [np.mean(finals[20]), np.mean(finals[40])])
    assert [text.get_text() for text in final.texts] == ["never"]
    assert [t.get_text() for t in curves.get_legend().get_texts()] == ["every 20", "every 40", "never"]
    assert (first.get_title(), second.get_title()) == ("rebalanced every 20", "rebalanced every 40")
    for axes, name in ((first, "20-1"), (second, "40-1")):
        (run,) = load([tmp_path / name])
        heads = run.heads(["beta"])
        assert heads is not None
        x, y = with_rebalancings(heads.step, heads["beta"], run.rebalancings())
        lines = next(c for c in axes.collections if len(c.get_paths()) == 6)
        for index, line in enumerate(lines.get_paths()):
            np.testing.assert_array_equal(line.vertices, np.stack([x, y[:, index // 2, index % 2]], axis=1))
    events = [event.before for event in load([tmp_path / "20-1"])[0].rebalancings()]
    assert picture.notes[0] == (
        f"every 20: β {np.median(events):.3f} before a rebalancing (median head), "
        f"final validation loss {np.mean(finals[20]):.4f} (mean of 2 seeds)"
    )


def _final(path: Path) -> float:
    return float(load([path])[0].evaluations()[1][-1])


def test_a_diverged_interval_is_shown_but_has_no_final_loss(tmp_path: Path) -> None:
    write(tmp_path / "a", config("adamw_rebalanced", rebalance__every=20))
    write(tmp_path / "b", config("adamw_rebalanced", rebalance__every=40), stop=55, state="diverged", error="bad")
    write(tmp_path / "c", config("adamw_rebalanced", rebalance__every=50), tables=("train", "eval"))
    picture = drawn(tmp_path)
    assert "every 40: " in picture.notes[1]
    assert picture.notes[1].endswith("no finished run")
    assert f"{tmp_path / 'b'}: diverged at step 55: bad" in picture.notes
    *_, second, third = picture.figure.axes
    assert [text.get_text() for text in second.texts] == ["diverged at step 55: bad"]
    assert [text.get_text() for text in third.texts] == ["no metrics"]


def test_one_interval_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", config("adamw_rebalanced"))
    write(tmp_path / "b", config("adamw_state_only", rebalance__every=7))
    with pytest.raises(Unsupported, match="no two intervals of rebalancing"):
        drawn(tmp_path)
