"""What the figures read is what lies in the folders, and bad folders are told apart."""

from pathlib import Path

import numpy as np
import pytest

from figures.synthetic import config, write, write_sweep
from identcli.architecture.errors import UserError
from identcli.figures.data import Rebalancing, Run, load, tidy, with_rebalancings
from identcli.store import metrics, record


def test_tidy_equals_a_slow_twin_with_missing_rows_and_nulls() -> None:
    rng = np.random.default_rng(0)
    rows = [(k, layer, head) for k in (0, 10, 20, 99) for layer in range(3) for head in range(2) if rng.random() < 0.8]
    step, layer, head = (np.array(column) for column in zip(*rows, strict=True))
    rho = rng.random(len(rows)).astype(np.float32)
    rho[3], rho[5] = np.nan, np.inf
    found = tidy({"step": step, "layer": layer, "head": head, "rho": rho})
    assert found is not None
    expected = np.full((4, 3, 2), np.nan)
    for (k, i, j), value in zip(rows, rho, strict=True):
        if np.isfinite(value):
            expected[[0, 10, 20, 99].index(k), i, j] = value
    assert found.step.tolist() == [0, 10, 20, 99]
    np.testing.assert_array_equal(found["rho"], expected)


def test_tables_come_back_as_written(tmp_path: Path) -> None:
    path = write(tmp_path / "run", config("adamw_rebalanced"))
    (run,) = load([path])
    stored = metrics.read(path, "heads", ["step", "layer", "head", "beta"])
    heads = run.heads(["beta"])
    assert heads is not None
    assert heads["beta"].shape == (11, 3, 2)
    for k, layer, head, beta in zip(*stored.values(), strict=True):
        assert heads["beta"][heads.step.tolist().index(k), layer, head] == beta
    biases = run.biases(["key_norm"])
    assert biases is not None
    assert biases["key_norm"].shape == (11, 3)
    assert run.heads(["beta"], circuit="ov") is None
    step, loss = run.evaluations()
    assert step.tolist() == [0, 25, 50, 75, 100]
    assert len(loss) == 5
    assert [event.step for event in run.rebalancings()] == [30, 60, 90]


def test_beta_gets_both_sides_of_each_rebalancing_between_the_rows() -> None:
    step, beta = np.array([28, 29, 30, 31]), np.array([1.0, 2.0, 0.1, 0.2]).reshape(4, 1, 1)
    one = Rebalancing(30, True, np.array([[2.0]]), np.array([[0.0]]))
    control = Rebalancing(31, False, np.array([[9.0]]), np.array([[9.0]]))
    x, y = with_rebalancings(step, beta, [one, control])
    assert x.tolist() == [28, 29, 29.5, 29.5, 30, 31]
    assert y.ravel().tolist() == [1, 2, 2, 0, 0.1, 0.2]
    x, y = with_rebalancings(step, beta, [control])
    assert x.tolist() == step.tolist()


def test_a_sweep_lists_points_that_never_started_and_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", [("case=sgd", config("sgd")), ("case=adamw", None)])
    runs = load([sweep, sweep / "case=sgd", tmp_path])
    assert [run.path.name for run in runs] == ["case=sgd", "case=adamw"]
    assert [run.trouble for run in runs] == [None, "never started"]
    assert runs[1].title == "case=adamw"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"state": "finished"}, None),
        ({"state": "running", "step": 7}, "running at step 7 of 100"),
        ({"state": "interrupted", "step": 7}, "interrupted at step 7 of 100"),
        ({"state": "diverged", "step": 37, "error": "non-finite loss"}, "diverged at step 37: non-finite loss"),
        ({"state": "failed", "step": 3, "error": "OSError: disk\n  full"}, "failed at step 3: OSError: disk full"),
    ],
)
def test_why_a_run_is_not_whole(status: dict[str, object], words: str | None) -> None:
    assert Run(Path("run1"), config(), status).trouble == words


def test_bad_paths_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no path given"):
        load([])
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        load([tmp_path / "nowhere"])
    with pytest.raises(UserError, match=r"empty: no run"):
        load([tmp_path / "empty"])
    broken = write(tmp_path / "broken", config(), tables=())
    record.write_config(broken, {"lr": 0.1})
    with pytest.raises(UserError, match=r"config.yaml: not the config of a run: 'optimizer' is missing"):
        load([broken])
