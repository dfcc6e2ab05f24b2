"""A whole run, from config to folder."""

import os
import signal
import threading

import numpy as np
import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.config.schema import parse
from identcli.runs.resume import resume
from identcli.runs.train import prepare, run
from identcli.store import checkpoints, events, metrics, record
from slow_measure import measure
from small_run import ADAMW, config, same


def go(folder, **changes):
    folder.mkdir()
    return run(config(**changes), folder, ["ident", "train"], live=False)


def test_the_folder_tells_the_whole_run(tmp_path):
    folder = tmp_path / "run1"
    outcome = go(folder)
    assert (outcome.state, outcome.step, outcome.exit_code) == ("finished", 8, 0)
    assert parse(record.read_config(folder)) == config()
    environment = record.read_environment(folder)
    assert environment["command"] == ["ident", "train"]
    assert environment["data"]["entropy_rate"] > 0
    status = record.read_status(folder)
    train = metrics.read(folder, "train")
    assert (status["state"], status["step"], status["error"]) == ("finished", 8, None)
    assert status["train_loss"] == pytest.approx(train["loss"][-1], rel=1e-6)
    assert train["step"].tolist() == list(range(8))
    assert train["tokens"].tolist() == [32 * (k + 1) for k in range(8)]
    assert train["lr"][2] == pytest.approx(0.25)
    evaluated = metrics.read(folder, "eval")
    assert evaluated["step"].tolist() == [0, 0, 4, 4, 8, 8]
    heads = metrics.read(folder, "heads")
    assert sorted(set(heads["step"].tolist())) == [0, 2, 4, 6, 7]
    assert len(heads["step"]) == 5 * 2 * 4
    assert (folder / "run.log").read_text(encoding="utf-8").count("\n") >= 3


def test_stored_values_follow_from_neighbouring_checkpoints(tmp_path):
    folder = tmp_path / "run1"
    go(folder, checkpoint={"every": 1}, collect={"every": 1})
    states = {step: checkpoints.load_tensors(checkpoints.at(folder, step)) for step in range(1, 9)}
    heads = metrics.read(folder, "heads")
    checked = 0
    for row in range(len(heads["step"])):
        step, layer, head = (int(heads[name][row]) for name in ("step", "layer", "head"))
        if step not in states or step + 1 not in states:
            continue
        twin = measure(states[step], states[step + 1], states[1], layer, head, 2, str(heads["circuit"][row]))
        for name in ("rho", "rho_bias", "beta", "tau", "mu", "drift", "drift_bias", "update_norm"):
            # Columns are float32: 6e-8 relative. ρ far below 1 keeps an absolute error of rounding, 1e-12.
            assert heads[name][row] == pytest.approx(twin[name], rel=1e-5, abs=1e-12), (name, step, layer, head)
            checked += 1
    assert checked == 7 * 8 * 8


def test_collecting_changes_neither_losses_nor_weights(tmp_path):
    dropout = {"dropout": 0.2}
    for name, collect in (("on", {"every": 1}), ("off", {"mode": "off", "circuits": []})):
        go(tmp_path / name, collect=collect, model=dropout, optimizer=ADAMW, lr=1e-3, checkpoint={"every": 8})
    losses = [metrics.read(tmp_path / name, "train")["loss"] for name in ("on", "off")]
    assert np.array_equal(*losses)
    on, off = (checkpoints.load_tensors(checkpoints.at(tmp_path / name, 8)) for name in ("on", "off"))
    assert all(torch.equal(on[name], off[name]) for name in on)
    assert not metrics.has(tmp_path / "off", "heads")


def test_another_seed_gives_another_run_on_the_same_evaluation_set(tmp_path):
    go(tmp_path / "a")
    go(tmp_path / "b", seed=8)
    a, b = (metrics.read(tmp_path / name, "train")["loss"] for name in "ab")
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("mode", ["on", "state_only"])
def test_each_rebalancing_leaves_an_event_and_no_row(tmp_path, mode):
    folder = tmp_path / "run1"
    settings = {"mode": mode, "circuits": ["qk", "ov"]}
    go(folder, rebalance=settings, optimizer=ADAMW, lr=1e-2, collect={"every": 1})
    found = [event for event in events.read(folder) if event["event"] == "rebalance"]
    assert [(event["step"], event["circuit"]) for event in found] == [(3, "qk"), (3, "ov"), (6, "qk"), (6, "ov")]
    heads = metrics.read(folder, "heads")
    for event in found:
        before, after = np.array(event["beta_before"]), np.array(event["beta_after"])
        rows = (heads["step"] == event["step"] - 1) & (heads["circuit"] == event["circuit"])
        np.testing.assert_allclose(heads["beta"][rows].reshape(2, 2), before, rtol=1e-6)
        if mode == "on":
            assert after.max() < 1e-6 < before.min()
            assert event["output_change"] < 1e-5 * event["output_scale"]
        else:
            assert np.array_equal(before, after)
            assert event["output_change"] == 0
    # The move is in no row: update 3 starts at the moved point, where β = 0, so its drift is the β that it leaves.
    row = (heads["step"] == 3) & (heads["circuit"] == "qk")
    starts_balanced = np.allclose(heads["drift"][row], heads["beta"][row], rtol=1e-4)
    assert starts_balanced == (mode == "on")


def test_a_run_that_diverges_keeps_its_finite_part(tmp_path):
    folder = tmp_path / "run1"
    outcome = go(folder, lr=1e30, clip=0.0, checkpoint={"every": 1}, schedule={"warmup": 0}, steps=50)
    assert (outcome.state, outcome.exit_code) == ("diverged", 1)
    status = record.read_status(folder)
    assert status["state"] == "diverged"
    assert f"diverged at step {outcome.step}" in status["error"]
    losses = metrics.read(folder, "train")["loss"]
    assert len(losses) == outcome.step
    assert np.isfinite(losses).all()
    assert checkpoints.list_steps(folder)[-1] == outcome.step
    assert events.read(folder)[-1]["event"] == "diverged"


def test_an_interrupted_run_can_be_read(tmp_path):
    folder = tmp_path / "run1"
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    outcome = go(folder, steps=1_000_000, eval={"every": 1_000_000})
    timer.cancel()
    assert (outcome.state, outcome.exit_code) == ("interrupted", 130)
    assert 0 < outcome.step == len(metrics.read(folder, "train")["step"])
    assert record.read_status(folder)["state"] == "interrupted"


def test_a_failure_is_recorded_with_its_reason(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of everything")

    monkeypatch.setattr("identcli.runs.session.checkpoints.save", broken)
    outcome = go(tmp_path / "run1", checkpoint={"every": 4})
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert record.read_status(tmp_path / "run1")["error"] == "RuntimeError: out of everything"
    assert "Traceback" in (tmp_path / "run1" / "run.log").read_text(encoding="utf-8")


def test_bfloat16_and_accumulation_train_too(tmp_path):
    go(tmp_path / "a", dtype="bfloat16", grad_accum=2)
    losses = metrics.read(tmp_path / "a", "train")
    assert losses["loss"][-1] < losses["loss"][0]
    assert losses["tokens"][0] == 64
    go(tmp_path / "b", grad_accum=2)
    assert not np.array_equal(losses["loss"], metrics.read(tmp_path / "b", "train")["loss"])


def test_what_is_missing_is_said_before_any_work(tmp_path):
    with pytest.raises(UserError, match="val part of the data has 3 tokens: too short for model.block_size=8"):
        prepare(config(data={"name": "markov", "states": 7, "length": 30, "concentration": 0.2, "seed": 0}))
    with pytest.raises(UserError, match="device=mps: not available"):
        prepare(config(device="mps"))
    with pytest.raises(UserError, match="cuda_graph=true: needs device=cuda, and this run is on cpu"):
        prepare(config(cuda_graph=True))


def test_a_recorded_run_is_the_same_run_and_goes_on_without_recording(tmp_path, monkeypatch):
    """All but the graph itself, which needs a GPU: dropout, collectors, rebalancing and a resume around it."""

    def played_back(run):
        with torch.random.fork_rng([]):
            run()
        return run

    settings = {"optimizer": ADAMW, "lr": 1e-2, "grad_accum": 2, "model": {"dropout": 0.2}, "collect": {"every": 1}}
    settings |= {"rebalance": {"mode": "on"}, "checkpoint": {"every": 5}}
    go(tmp_path / "plain", **settings)
    monkeypatch.setattr("identcli.training.graph.cuda_graph", played_back)
    monkeypatch.setattr("identcli.runs.session.require_capturable", lambda device, processes: None)
    assert go(tmp_path / "recorded", cuda_graph=True, stop_at=5, **settings).step == 5
    assert resume(tmp_path / "recorded", {"cuda_graph": False}, [], live=False).state == "finished"
    same(tmp_path / "plain", tmp_path / "recorded", 8)
    assert record.config_hash(config(cuda_graph=True).to_dict()) == record.config_hash(config().to_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a whole run on a GPU: needs a CUDA device")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_run_on_a_gpu_is_the_run_on_a_cpu(tmp_path, cuda_graph):
    settings = {"optimizer": ADAMW, "lr": 1e-3, "collect": {"every": 1}, "rebalance": {"mode": "on"}, "steps": 40}
    settings |= {"checkpoint": {"every": 20}, "grad_accum": 2}
    go(tmp_path / "cpu", **settings)
    assert go(tmp_path / "gpu", device="cuda", cuda_graph=cuda_graph, stop_at=25, **settings).step == 25
    assert resume(tmp_path / "gpu", {}, [], live=False).state == "finished"
    cpu, gpu = (
        {table: metrics.read(tmp_path / name, table) for table in ("train", "heads")} for name in ("cpu", "gpu")
    )
    # float32 in another order, 1e-7 a step, which AdamW's steps of size lr enlarge for entries without a gradient.
    np.testing.assert_allclose(gpu["train"]["loss"], cpu["train"]["loss"], rtol=1e-4)
    assert np.array_equal(gpu["heads"]["step"], cpu["heads"]["step"])
    # β is 1e-9 after a rebalancing and grows from there; elsewhere it is some hundredths.
    np.testing.assert_allclose(gpu["heads"]["beta"], cpu["heads"]["beta"], rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(gpu["heads"]["rho"], cpu["heads"]["rho"], atol=1e-2)
