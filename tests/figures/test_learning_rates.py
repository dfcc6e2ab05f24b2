"""Fig. 4: rows of learning rates as stored, and the exponent of drift against a slow fit of the same medians."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from figures.synthetic import config, write, write_sweep
from identcli.figures import learning_rates, style
from identcli.figures.data import load
from identcli.figures.picture import Picture, Unsupported

LRS = (0.25, 0.5, 0.0625, 0.125)


def drawn(*paths: Path) -> Picture:
    with style.applied():
        return learning_rates.draw(load(paths))


def sweep(path: Path, **options: Any) -> Path:
    return write_sweep(path, [(f"case=sgd+lr={lr}", config("sgd", lr=lr)) for lr in LRS], **options)


def test_rows_are_learning_rates_from_the_highest_with_the_stored_drift(tmp_path: Path) -> None:
    path = sweep(tmp_path / "s")
    picture = drawn(path)
    rows = [picture.figure.axes[start : start + 3] for start in (0, 3, 6, 9)]
    titles = [row[0].texts[0].get_text() for row in rows]
    assert titles == ["SGD, lr 0.5", "SGD, lr 0.25", "SGD, lr 0.125", "SGD, lr 0.0625"]
    for row, lr in zip(rows, sorted(LRS, reverse=True), strict=True):
        (run,) = load([path / f"case=sgd+lr={lr}"])
        heads = run.heads(["drift", "drift_floor"])
        assert heads is not None
        (lines,) = [c for c in row[2].collections if isinstance(c, LineCollection)]
        for index, line in enumerate(lines.get_paths()):
            np.testing.assert_array_equal(line.vertices[:, 1], heads["drift"][:, index // 2, index % 2])
        np.testing.assert_array_equal(row[2].lines[0].get_ydata(), np.median(heads["drift_floor"], axis=(1, 2)))
    assert len({row[2].get_ylim() for row in rows}) == 1


def test_the_exponent_is_that_of_the_median_heads_after_the_warm_up(tmp_path: Path) -> None:
    path = sweep(tmp_path / "s")
    picture = drawn(path)
    medians = []
    for lr in LRS:
        (run,) = load([path / f"case=sgd+lr={lr}"])
        heads = run.heads(["drift"])
        assert heads is not None
        medians.append(np.median(np.median(heads["drift"][heads.step >= 20], axis=0)))
    slope = np.polyfit(np.log(LRS), np.log(medians), 1)[0]
    assert picture.notes[0].startswith(f"drift ~ lr^{slope:.1f} (95 %: ")
    assert picture.notes[0].endswith("; steps 20–99)")
    side = picture.figure.axes[-1]
    marks = {
        float(line.get_xdata()[0]): float(line.get_ydata()[0]) for line in side.lines if len(line.get_xdata()) == 1
    }
    assert marks == pytest.approx(dict(zip(LRS, medians, strict=True)))
    assert sum(len(c.get_offsets()) for c in side.collections) == 6 * len(LRS)


def test_an_exact_power_law_is_found_and_a_drift_at_the_floor_is_pointed_out(tmp_path: Path) -> None:
    for lr in LRS:

        def law(table: str, step: int, columns: dict[str, Any], lr: float = lr) -> None:
            if table == "heads":
                columns["drift"] = np.array([1, 1, 2, 2, 9, 9]) * 3e-6 * lr**2

        write(tmp_path / str(lr), config("sgd", lr=lr), edit=law)
    notes = drawn(tmp_path).notes
    assert notes[0] == "drift ~ lr^2.0 (95 %: 2.0 … 2.0; steps 20–99)"
    # The floor is 7.9e-9; the median drift 2.3e-8 at the lowest, 3 floors.
    assert len(notes) == 1

    def silent(table: str, step: int, columns: dict[str, Any]) -> None:
        if table == "heads":
            columns["drift"] = np.full(6, 1e-8)

    write(tmp_path / "low", config("sgd", lr=0.01), edit=silent)
    assert "at lr 0.01 the median drift lies within 2× of what rounding alone gives" in drawn(tmp_path).notes


def test_a_diverged_rate_and_one_that_never_started_keep_their_rows_but_not_their_say(tmp_path: Path) -> None:
    points = [(f"case=sgd+lr={lr}", config("sgd", lr=lr)) for lr in (0.25, 0.125)]
    path = write_sweep(tmp_path / "s", [*points, ("case=sgd+lr=2", None)])
    write(path / "x", config("sgd", lr=8.0), stop=37, state="diverged", error="non-finite loss")
    picture = drawn(path, path / "x")
    texts = [text.get_text() for axes in picture.figure.axes for text in axes.texts]
    for words in (
        "SGD, lr 8",
        "   diverged at step 37: non-finite loss (own scale)",
        "case=sgd lr=2",
        "   never started",
    ):
        assert words in texts
    assert "two learning rates: no interval" in picture.notes[0]
    assert f"{path / 'x'}: diverged at step 37: non-finite loss" in picture.notes
    assert f"{path / 'case=sgd+lr=2'}: never started" in picture.notes


def test_without_two_finished_rates_there_is_no_exponent_but_a_figure(tmp_path: Path) -> None:
    write(tmp_path / "a", config("sgd", lr=0.5), state="running", step=50)
    write(tmp_path / "b", config("sgd", lr=0.25))
    assert drawn(tmp_path).notes[0].startswith("no exponent of drift against learning rate")


def test_seeds_are_pooled_and_plain_sgd_goes_before_other_sweeps(tmp_path: Path) -> None:
    for lr in (0.002, 0.001):
        write(tmp_path / f"a{lr}", config("adamw", lr=lr))
    for lr in (0.5, 0.25):
        for seed in (1, 2):
            write(tmp_path / f"s{lr}{seed}", config("sgd", lr=lr, seed=seed))
    picture = drawn(tmp_path)
    assert picture.figure.axes[0].texts[0].get_text() == "SGD, lr 0.5"
    assert sum(len(c.get_offsets()) for c in picture.figure.axes[-1].collections) == 2 * 2 * 6
    assert any("another learning-rate sweep (AdamW, decay 0.1) is left out" in note for note in picture.notes)


def test_one_learning_rate_or_no_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"a: no two learning rates of one setting \(there: 0.25\)"):
        drawn(write(tmp_path / "a", config("sgd")))
    with pytest.raises(Unsupported, match="no metrics of the heads"):
        drawn(sweep(tmp_path / "s", tables=("train",)))
