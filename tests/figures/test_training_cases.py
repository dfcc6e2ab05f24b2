"""Fig. 2 draws what is stored: every line is compared with the tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from figures.synthetic import CASES, config, write, write_sweep
from identcli.figures import style, training_cases
from identcli.figures.data import Run, load
from identcli.figures.picture import Picture, Unsupported

LOSS, RHO, BETA, TAU, MU = range(5)


def drawn(*paths: Path) -> tuple[Picture, list[list[Axes]], list[Run]]:
    runs = load(paths)
    with style.applied():
        picture = training_cases.draw(runs)
    axes = picture.figure.axes
    return picture, [axes[start : start + 5] for start in range(0, len(axes), 5)], runs


def head_lines(axes: Axes) -> np.ndarray:
    """(L·G, points, 2): what the panel's lines of layers and heads go through."""
    collections = [c for c in axes.collections if isinstance(c, LineCollection)]
    (lines,) = [c for c in collections if c.get_transform().contains_branch(axes.transData)]
    # Not get_segments(), which leaves out NaN.
    return np.array([path.vertices for path in lines.get_paths()])


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def table(run: Run, column: str) -> Any:
    heads = run.heads([column])
    assert heads is not None
    return heads.step, heads[column]


def test_every_line_goes_through_the_stored_values(tmp_path: Path) -> None:
    _, (row,), (run,) = drawn(write(tmp_path / "run", config("adamw")))
    for panel, column in ((RHO, "rho"), (BETA, "beta"), (TAU, "tau"), (MU, "mu")):
        step, values = table(run, column)
        lines = head_lines(row[panel])
        assert lines.shape == (6, len(step), 2)
        for index, line in enumerate(lines):
            np.testing.assert_array_equal(line[:, 0], step)
            np.testing.assert_array_equal(line[:, 1], values[:, index // 2, index % 2])
    training, validation = row[LOSS].lines
    np.testing.assert_array_equal(training.get_xydata(), np.stack(run.losses(), axis=1))
    np.testing.assert_array_equal(validation.get_xydata(), np.stack(run.evaluations(), axis=1))


def test_rho_has_its_company(tmp_path: Path) -> None:
    _, (row,), (run,) = drawn(write(tmp_path / "run", config("sgd")))
    norm, floor, chance = row[RHO].lines
    np.testing.assert_array_equal(norm.get_ydata(), table(run, "update_norm")[1].max(axis=(1, 2)))
    np.testing.assert_array_equal(floor.get_ydata(), np.median(table(run, "rho_floor")[1], axis=(1, 2)))
    # Two heads: 1/(2H) = 1/4.
    assert set(chance.get_ydata()) == {0.25}
    assert row[RHO].get_yscale() == "log"


def test_a_rebalancing_drops_beta_between_the_rows_and_is_marked_and_the_control_only_marked(tmp_path: Path) -> None:
    write(tmp_path / "on", config("adamw_rebalanced"))
    write(tmp_path / "control", config("adamw_state_only"))
    _, (on, control), (_, run) = drawn(tmp_path)
    line = head_lines(on[BETA])[0]
    for step in (30, 60, 90):
        before, after = line[line[:, 0] == step - 0.5, 1]
        assert after == 0 < before
    assert len(head_lines(on[TAU])[0]) == 11
    assert len(head_lines(control[BETA])[0]) == len(table(run, "beta")[0])
    for axes in (*on, *control):
        assert any([segment[0, 0] for segment in c.get_segments()] == [30, 60, 90] for c in axes.collections)


def test_rows_share_their_scale_and_layers_their_colours(tmp_path: Path) -> None:
    for case in CASES:
        write(tmp_path / case, config(case))
    picture, rows, _ = drawn(tmp_path)
    assert len(rows) == 5
    for column in range(5):
        assert len({row[column].get_ylim() for row in rows}) == 1
        assert len({row[column].get_xlim() for row in rows}) == 1
    colours = next(c for c in rows[0][BETA].collections if len(c.get_segments()) == 6).get_colors()
    assert len({tuple(c) for c in colours}) == 3
    assert [tuple(c) for c in colours[::2]] == [tuple(c) for c in colours[1::2]]
    titles = [text for text in words(picture.figure) if "lr" in text]
    assert titles[0] == "SGD, lr 0.25"
    assert titles[3] == "AdamW, decay 0.1, rebalanced every 30, lr 0.001"


def test_other_seeds_show_as_faint_losses_and_other_learning_rates_in_the_notes(tmp_path: Path) -> None:
    points = [(f"seed={s}", config("sgd", seed=s)) for s in (1, 2, 3)] + [("lr=0.5", config("sgd", lr=0.5))]
    picture, (row,), runs = drawn(write_sweep(tmp_path / "s", points))
    lines = row[LOSS].lines
    assert len(lines) == 4
    np.testing.assert_array_equal(lines[1].get_ydata(), runs[1].evaluations()[1])
    assert lines[1].get_alpha() < 1
    finals = [run.evaluations()[1][-1] for run in runs[:3]]
    assert any("not 0.5" in note for note in picture.notes)
    spread = f"{np.mean(finals):.3f} in the mean of 3 seeds, {min(finals):.3f} … {max(finals):.3f}"
    assert any(spread in note for note in picture.notes)


def test_nulls_make_gaps(tmp_path: Path) -> None:
    def gap(name: str, step: int, columns: dict[str, Any]) -> None:
        if name == "heads" and step in (40, 50):
            columns["rho"] = np.full(6, np.nan)

    _, (row,), _ = drawn(write(tmp_path / "run", config("sgd"), edit=gap))
    for line in head_lines(row[RHO]):
        assert np.isnan(line[[4, 5], 1]).all()
        assert np.isfinite(np.delete(line, [4, 5], axis=0)).all()


def test_a_diverged_run_shows_its_finite_part_on_its_own_scale(tmp_path: Path) -> None:
    def burst(name: str, step: int, columns: dict[str, Any]) -> None:
        if name == "train":
            columns["loss"] = np.exp(step) if step < 36 else np.inf

    write(tmp_path / "good", config("adamw"))
    bad = {"state": "diverged", "step": 37, "error": "non-finite loss"}
    write(tmp_path / "bad", config("sgd", lr=1e3), stop=37, edit=burst, **bad)
    picture, (first, second), _ = drawn(tmp_path)
    assert "   diverged at step 37: non-finite loss (own scale)" in words(picture.figure)
    assert f"{tmp_path / 'bad'}: diverged at step 37: non-finite loss" in picture.notes
    assert np.isnan(first[LOSS].lines[0].get_ydata()[-1])
    assert first[LOSS].get_ylim()[1] > 1e15
    assert second[LOSS].get_ylim()[1] < 5
    assert head_lines(first[BETA])[0, -1, 0] == 36
    assert any(list(line.get_xdata()) == [37, 37] for line in first[TAU].lines)


def test_a_run_without_metrics_says_so_and_one_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", config("sgd"))
    alone = write(tmp_path / "b", config("adamw"), tables=("train", "eval"))
    picture, (_, second), _ = drawn(tmp_path)
    assert words(picture.figure).count("no metrics") == 4
    assert len(second[LOSS].lines[0].get_xdata()) == 100
    with pytest.raises(Unsupported, match=r"b: no metrics of the heads \(metrics/heads\), which collect=paper would"):
        drawn(alone)


def test_long_runs_are_decimated_and_keep_their_peaks(tmp_path: Path) -> None:
    def spike(name: str, step: int, columns: dict[str, Any]) -> None:
        if name == "heads" and step == 777:
            columns["rho"] = np.where(np.arange(6) == 4, 0.99, columns["rho"])

    settings = config("sgd", steps=1500, collect__every=1)
    _, (row,), (run,) = drawn(write(tmp_path / "run", settings, edit=spike))
    lines = head_lines(row[RHO])
    assert lines.shape[1] < 500
    peak = lines[4, lines[4, :, 1].argmax()]
    assert peak.tolist() == [777, np.float32(0.99)]
    assert lines[..., 1].min() == table(run, "rho")[1].min()


def test_too_many_cases_are_cut_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_cases, "MOST_ROWS", 1)
    for batch in (1, 2):
        write(tmp_path / str(batch), config(batch_size=batch, steps=1), tables=("heads",))
    picture, rows, _ = drawn(tmp_path)
    assert len(rows) == 1
    assert "only the first 1 of 2 cases are shown: name fewer runs to see the others" in picture.notes
