"""Every benchmark runs, at sizes that say nothing about speed; what it writes can be made a page of."""

import json
import sys
from functools import partial

import numpy as np
import pytest
from benchmarks import collectors_cost, growth, invented, memory, report, sweep_speed, training_speed, whole_processes
from benchmarks.loops import Apart, Paced, as_block, nanogpt
from benchmarks.turns import Comparison, Goal, Ran, compare, in_turn, process

from identcli.store import metrics

# What the benchmarks use of nanoGPT's model.py, so that no test needs a checkout.
MODEL = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, x, y):
        logits = self.head(self.embed(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        assert device_type == "cpu"
        return torch.optim.AdamW(self.parameters(), learning_rate, betas, weight_decay=weight_decay)
"""


@pytest.fixture
def checkout(tmp_path):
    place = tmp_path / "nanoGPT"
    place.mkdir()
    (place / "model.py").write_text(MODEL)
    return place


ALONE = ("--threads", "1")


def result(benchmark, tmp_path, *words):
    """What a trial run of the benchmark has written; all its times and ratios are positive."""
    path = benchmark.main(["--quick", "--out", str(tmp_path / "results"), *words])
    found = json.loads(path.read_text())
    assert found["quick"]
    assert found["versions"]["torch"]
    assert found["table"]["rows"]
    for each in found["measured"]:
        assert all(ratio > 0 for ratio in each.get("ratio", {}).values())
        assert len(each.get("first_took", ())) == len(each.get("second_took", ()))
        assert all(took > 0 for side in ("first_took", "second_took") for took in each.get(side, ()))
    return found


def test_training_speed(tmp_path, checkout):
    [each] = result(training_speed, tmp_path, *ALONE, "--nanogpt", str(checkout))["measured"]
    assert (each["first"], each["second"], each["tokens_a_step"]) == ("nanoGPT", "ident", 16)


def test_the_checkout_must_be_one(tmp_path):
    with pytest.raises(SystemExit, match="--nanogpt names a checkout of nanoGPT"):
        training_speed.main(["--quick", "--nanogpt", str(tmp_path)])
    with pytest.raises(SystemExit, match="--nanogpt names a checkout of nanoGPT"):
        Apart(nanogpt, tmp_path, "tiny", 1, tmp_path)  # a process of its own says it as well


def test_collectors_cost(tmp_path):
    found = result(collectors_cost, tmp_path, *ALONE)["measured"]
    assert [each["first"] for each in found] == ["measured"] * 2 + ["plain loop", "plain loop with biases"]


def test_two_steps_of_four_are_measured_one_behind_the_other():
    assert [step for step in range(12) if collectors_cost.in_turns(step)] == [2, 3, 6, 7, 10, 11]
    assert list(collectors_cost.STEPS) == ["behind", "not", "measured", "again"]


def test_a_measurement_that_differs_from_the_plain_loop_is_not_timed():
    with pytest.raises(SystemExit, match="rho differs from the plain loop's by 1.0e-06"):
        collectors_cost.check({"rho": [1.0]}, {"rho": np.array([1 + 1e-6])})


def test_whole_processes(tmp_path):
    [each] = result(whole_processes, tmp_path)["measured"]
    assert each["judged"]["goal"] == "≤ 0.15 s"


def test_the_command_is_kept_without_places(tmp_path, checkout):
    command = result(memory, tmp_path, *ALONE, "--nanogpt", str(checkout))["command"]
    words = "python -m benchmarks.memory --quick --threads 1 --nanogpt path/to/a/checkout"
    assert command == f"{words} --scale demo cpu paper --steps 200000"


def test_memory(tmp_path, checkout):
    [each] = result(memory, tmp_path, *ALONE, "--nanogpt", str(checkout))["measured"]
    assert each["unit"] == "MiB"


def test_growth(tmp_path):
    found = result(growth, tmp_path, *ALONE)["measured"]
    assert {each["what"] for each in found} == set(growth.COSTS)


def test_the_slope_is_the_exponent():
    assert growth.slope({1: 3.0, 2: 12.0, 4: 48.0}) == pytest.approx(2)


def test_sweep_speed(tmp_path, monkeypatch):
    """The sweeps themselves take half a minute to start; here stand-ins write what the benchmark reads."""
    started = []

    def stand_in(command, folder):
        started.append(command)
        for point in range(2):
            run = folder / f"outputs/speed/{point}"
            run.mkdir(parents=True)
            (run / "status.json").write_text('{"state": "finished", "elapsed_s": 2.0}')
        return Ran(8.0 if "threads=2" in command else 4.0, peak_mib=1.0)

    monkeypatch.setattr(sweep_speed, "process", stand_in)
    found = result(sweep_speed, tmp_path)
    assert [each["ratio"]["medians"] for each in found["measured"]] == [2.0, 0.5, 1.0]
    assert found["start_share"] == {"one after the other": [0.5], "two at a time": [0.5]}
    assert "hydra.launcher.n_jobs=2" in started[1]


def test_the_page_has_the_newest_result_of_each_and_the_goals(tmp_path, checkout):
    taken = [Comparison("a step", "nanoGPT", "ident", [3.0, 3.0], [2.0, 4.0], goal=Goal("ratio", "at least", 1.1))]
    result(memory, tmp_path, *ALONE, "--nanogpt", str(checkout))
    [written] = (tmp_path / "results").iterdir()
    old = json.loads(written.read_text()) | {"name": "training_speed", "title": "Old"}
    new = old | {"title": "New", "measured": [each.to_dict() for each in taken]}
    (tmp_path / "results/2026-01-01-training_speed.json").write_text(json.dumps(old))
    (tmp_path / "results/2026-01-02-training_speed.json").write_text(json.dumps(new))
    page = report.main(["--results", str(tmp_path / "results"), "--to", str(tmp_path / "page.md")]).read_text()
    assert "## New" in page
    assert "## Old" not in page
    assert page.index("## New") < page.index("## Peak memory")
    assert "| a step | nanoGPT / ident | ≥ 1.1 | 1.000 | **no** |" in page


def test_ratios_and_goals():
    each = Comparison("x", "a", "b", [1.0, 2.0, 6.0], [1.0, 1.0, 2.0])
    assert (each.ratio, each.ratio_of_minima, each.ratio_in_pairs) == (2.0, 1.0, 2.0)
    for of, sense, bound, reached in [
        ("ratio", "at least", 2.0, True),
        ("ratio", "at most", 1.9, False),
        ("first", "at most", 2.0, True),
        ("difference", "at most", 0.9, False),
    ]:
        judged = Comparison("x", "a", "b", each.first_took, each.second_took, goal=Goal(of, sense, bound))
        assert judged.reached is reached, (of, sense, bound)


def test_turns_are_taken():
    order = []
    in_turn({side: partial(order.append, side) for side in "AB"}, blocks=2)
    assert "".join(order) == "ABABAB"  # the first two untimed


def test_the_run_makes_as_many_steps_as_wanted_and_waits():
    made = []

    def run(wanted):
        paced = Paced(wanted)
        while True:
            made.append(len(made))
            assert not paced.asked

    compare(as_block(run), lambda count: None, steps=3, blocks=1)
    assert len(made) == 6


def test_what_ends_the_run_is_told():
    def run(wanted):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        as_block(run)(1)


def refuses(wanted):
    raise ValueError(f"no {wanted()} steps")


def takes_them(wanted):
    while wanted():
        pass


def test_a_loop_apart_answers_and_tells_its_failures():
    with Apart(partial, takes_them) as loop:
        loop(3)
        assert 5 < loop.peak_mib() < 2000
        loop(1)
    with Apart(partial, refuses) as loop, pytest.raises(RuntimeError, match="ValueError: no 3 steps"):
        loop(3)


def test_a_process_is_timed_and_its_failure_told(tmp_path):
    ran = process([sys.executable, "-c", "pass"], tmp_path)
    assert ran.seconds > 0
    assert ran.peak_mib > 5
    with pytest.raises(SystemExit, match=r"exit status 3\nwhy"):
        process([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path)


def test_an_invented_run_has_every_step_of_every_head(tmp_path):
    words = ["model.n_layer=2", "model.n_head=2", "model.n_embd=16"]
    assert invented.write_run(tmp_path / "run", 5, words) == 5 * 4
    heads = metrics.read(tmp_path / "run", "heads", ["step", "layer", "head", "rho"])
    assert sorted(zip(heads["step"], heads["layer"], heads["head"], strict=True)) == [
        (step, layer, head) for step in range(5) for layer in range(2) for head in range(2)
    ]
