"""Runs in cases, titles that tell them apart, and losses paired by seed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from figures.synthetic import config, write, write_sweep
from identcli.figures.cases import cases
from identcli.figures.data import Run, load
from identcli.figures.naming import titles
from identcli.figures.paired_loss import differences
from identcli.store import metrics


def runs_of(*settings: dict[str, object]) -> list[Run]:
    return [Run(Path(f"run{i}"), one, {"state": "finished"}) for i, one in enumerate(settings)]


def test_cases_come_in_the_order_of_the_paper_with_the_first_learning_rate_and_seed() -> None:
    runs = runs_of(
        config("adamw"),
        config("sgd", lr=0.5, seed=2),
        config("sgd", lr=0.25, seed=2),
        config("sgd", lr=0.5, seed=1),
        config("adamw_state_only"),
        config("sgd_decay"),
        config("adamw_rebalanced"),
    )
    found = cases(runs)
    assert [case.run.case for case in found] == ["sgd", "sgd_decay", "adamw", "adamw_rebalanced", "adamw_state_only"]
    assert found[0].run is runs[1]
    assert found[0].seeds == [runs[3]]
    assert found[0].other_lrs == [runs[2]]


def test_a_point_that_never_started_joins_the_case_of_its_sweep_or_makes_its_own(tmp_path: Path) -> None:
    points = [("case=sgd+seed=1", config("sgd", seed=1)), ("case=sgd+seed=2", None)]
    points += [("case=adamw+seed=1", None), ("case=adamw+seed=2", None)]
    sgd, adamw = cases(load([write_sweep(tmp_path / "s", points, tables=())]))
    assert [run.path.name for run in sgd.missing] == ["case=sgd+seed=2"]
    assert adamw.run.config == {}
    assert len(adamw.missing) == 1


def test_titles_name_a_setting_only_where_it_tells_runs_apart() -> None:
    runs = runs_of(config("sgd"), config("adamw", batch_size=12), config("adamw", batch_size=24))
    assert titles(runs) == [
        "SGD, lr 0.25",
        "AdamW, decay 0.1, lr 0.001, batch_size=12",
        "AdamW, decay 0.1, lr 0.001, batch_size=24",
    ]
    off = runs_of(config("sgd", rebalance__every=7), config("sgd", rebalance__every=8))
    assert len(cases(off)) == 1
    same = runs_of(config("sgd"), config("sgd"))
    assert titles(same) == ["SGD, lr 0.25, run0", "SGD, lr 0.25, run1"]


def test_losses_are_paired_by_seed_and_setting(tmp_path: Path) -> None:
    finals = {}
    rng = np.random.default_rng(0)

    def luck(table: str, step: int, columns: dict[str, Any]) -> None:
        columns["loss"] += rng.standard_normal()

    for seed in (1, 2):
        for case in ("adamw", "adamw_rebalanced", "adamw_state_only"):
            settings = config(case, seed=seed, rebalance__every=20)
            path = write(tmp_path / f"{case}{seed}", settings, tables=("eval",), edit=luck)
            finals[case, seed] = metrics.read(path, "eval", ["loss"])["loss"][-1]
    # Neither another batch size nor a run that broke off may be a partner.
    write(tmp_path / "other", config("adamw", seed=1, batch_size=3))
    write(tmp_path / "broken", config("adamw", seed=3), state="diverged", step=9)
    write(tmp_path / "alone", config("adamw_rebalanced", seed=3, rebalance__every=20))
    lines = differences(load([tmp_path]))
    assert len(lines) == 3
    on, plain, control = "adamw_rebalanced", "adamw", "adamw_state_only"
    for first, second, beginning in (
        (on, plain, r"\[AdamW, decay 0.1, rebalanced every 20.*\] minus that of \[AdamW, decay 0.1, lr"),
        (on, control, r"\[AdamW, decay 0.1, rebalanced every 20.*\] minus that of \[.* state cleared every 20"),
        (control, plain, r"\[AdamW, decay 0.1, state cleared every 20.*\] minus that of \[AdamW, decay 0.1, lr"),
    ):
        (line,) = [line for line in lines if re.search(beginning, line)]
        gap = [finals[first, seed] - finals[second, seed] for seed in (1, 2)]
        assert line.endswith(f"{sum(gap) / 2:+.4f} nats (mean of 2 seeds, paired; {min(gap):+.4f} … {max(gap):+.4f})")
    assert not any("seed=" in line for line in lines)


def test_no_pair_no_line() -> None:
    assert differences(runs_of(config("sgd"), config("adamw_rebalanced"))) == []


@pytest.mark.parametrize("runs", [[], [Run(Path("s/p"), {}, {}, ("lr=1",))]])
def test_nothing_started_is_no_error_here(runs: list[Run]) -> None:
    assert len(cases(runs)) == len(runs)
    assert differences(runs) == []
