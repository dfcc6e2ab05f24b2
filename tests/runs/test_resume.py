"""A run that is split anywhere is the run that was never split, bit for bit."""

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.config.errors import ConfigErrors
from identcli.runs import session
from identcli.runs.resume import resume
from identcli.runs.session import prepare
from identcli.runs.train import run
from identcli.store import checkpoints, events, record
from small_run import ADAMW, PLAIN, config, same

STEPS = 20
MOMENTUM = {"name": "sgd", "weight_decay": 1e-3, "momentum": 0.9}
SETTINGS = {
    "steps": STEPS,
    "model": {"dropout": 0.2},
    "rebalance": {"mode": "on", "every": 7},
    "collect": {"every": 3},
    "eval": {"every": 5},
    "checkpoint": {"every": 50},
}


def start(folder, **changes):
    folder.mkdir()
    return run(config(**{**SETTINGS, **changes}), folder, ["ident"], live=False)


@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
@pytest.mark.parametrize("stops", [[10], [1, 7, 13]], ids=["half", "three"])
def test_split_anywhere_equals_straight(tmp_path, optimizer, stops):
    start(tmp_path / "straight", optimizer=optimizer, lr=1e-2)
    split = tmp_path / "split"
    outcome = start(split, optimizer=optimizer, lr=1e-2, stop_at=stops[0])
    assert (outcome.state, outcome.step, outcome.exit_code) == ("interrupted", stops[0], 0)
    for stop in stops[1:]:
        assert resume(split, {"stop_at": stop}, ["ident"], live=False).step == stop
    assert resume(split, {}, ["ident"], live=False).state == "finished"
    same(tmp_path / "straight", split, STEPS)
    assert [event["step"] for event in events.read(split) if event["event"] == "resume"] == stops


def test_split_equals_straight_where_parts_of_a_batch_go_side_by_side(tmp_path, monkeypatch):
    settings = {"optimizer": ADAMW, "lr": 1e-2, "threads": 2}
    start(tmp_path / "whole", **settings)
    monkeypatch.setattr(session, "rows_at_a_time", lambda device, batch_size, floats: batch_size // 2)
    start(tmp_path / "straight", **settings)
    start(tmp_path / "split", **settings, stop_at=11)
    assert resume(tmp_path / "split", {}, ["ident"], live=False).state == "finished"
    same(tmp_path / "straight", tmp_path / "split", STEPS)
    with pytest.raises(AssertionError, match="train"):  # masks of a part are others than those of the whole
        same(tmp_path / "whole", tmp_path / "split", STEPS)


@pytest.mark.parametrize("change", [{}, {"compile": True}, {"dtype": "bfloat16"}], ids=["plain", "compile", "bfloat16"])
def test_parts_go_side_by_side_in_float32_without_the_compiler(tmp_path, monkeypatch, change):
    parts = session.Session(config(**change), tmp_path, prepare(config()), bar=False).precision
    assert not parts.side_by_side  # of a batch that goes in one part
    monkeypatch.setattr(session, "rows_at_a_time", lambda device, batch_size, floats: batch_size // 2)
    parts = session.Session(config(**change), tmp_path, prepare(config()), bar=False).precision
    assert parts.side_by_side == (change == {})


def test_without_the_random_state_the_split_shows(tmp_path, monkeypatch):
    """The counter-example: dropout makes the test above able to fail."""
    start(tmp_path / "straight", optimizer=ADAMW, lr=1e-2)
    start(tmp_path / "split", optimizer=ADAMW, lr=1e-2, stop_at=10)
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    resume(tmp_path / "split", {}, ["ident"], live=False)
    with pytest.raises(AssertionError, match="train"):
        same(tmp_path / "straight", tmp_path / "split", STEPS)


def test_what_was_written_past_the_checkpoint_is_replaced(tmp_path):
    start(tmp_path / "straight")
    split = tmp_path / "split"
    start(split, checkpoint={"every": 4})
    # As after a kill at step 14: the newest checkpoint is broken, rows and events go past the one before.
    for step in (20, 16):
        (checkpoints.at(split, step) / "model.safetensors").write_bytes(b"half")
    record.write_status(split, state="running", pid=2**22 + 1)
    assert resume(split, {}, ["ident"], live=False).state == "finished"
    same(tmp_path / "straight", split, STEPS)
    again = next(event for event in events.read(split) if event["event"] == "resume")
    assert again["step"] == 12
    assert [text.split(":")[0] for text in again["skipped"]] == ["step-000020", "step-000016"]


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    start(tmp_path / "straight")
    start(tmp_path / "split", checkpoint={"every": 0})
    record.write_status(tmp_path / "split", state="running", pid=2**22 + 1)
    resume(tmp_path / "split", {"checkpoint.every": 50}, ["ident"], live=False)
    same(tmp_path / "straight", tmp_path / "split", STEPS)


def test_changes_are_recorded_or_refused(tmp_path):
    start(tmp_path / "a", stop_at=4)
    with pytest.raises(ConfigErrors, match=r"model.n_layer=3: the run has 2, which a resume can't change"):
        resume(tmp_path / "a", {"model.n_layer": 3}, [])
    with pytest.raises(ConfigErrors, match=r"seed=1: the run has 7"):
        resume(tmp_path / "a", {"seed": 1, "lr": 0.5}, [])
    with pytest.raises(ConfigErrors, match=r"lrr: no such option of this run"):
        resume(tmp_path / "a", {"lrr": 1}, [])
    with pytest.raises(UserError, match=r"lr=-1"):
        resume(tmp_path / "a", {"lr": -1.0}, [])
    with pytest.raises(UserError, match=r"steps=3: the checkpoint has made 4 already"):
        resume(tmp_path / "a", {"steps": 3}, [])
    assert record.read_config(tmp_path / "a")["lr"] == PLAIN["lr"]
    outcome = resume(tmp_path / "a", {"lr": 0.5, "steps": 6, "model.dropout": 0.1}, [], live=False)
    assert (outcome.state, outcome.step) == ("finished", 6)
    event = next(event for event in events.read(tmp_path / "a") if event["event"] == "resume")
    assert event["changes"] == {"stop_at": [4, None], "lr": [0.25, 0.5], "steps": [20, 6], "model.dropout": [0.2, 0.1]}
    with pytest.raises(UserError, match="finished all 6 steps already"):
        resume(tmp_path / "a", {}, [])


def test_a_checkpoint_that_lacks_a_part_is_refused(tmp_path, monkeypatch):
    start(tmp_path / "a", stop_at=4)
    whole = checkpoints.load_state
    monkeypatch.setattr(checkpoints, "load_state", lambda path: {k: v for k, v in whole(path).items() if k != "rng"})
    with pytest.raises(UserError, match="the checkpoint lacks rng"):
        resume(tmp_path / "a", {}, [])


def test_another_text_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh" * 40, encoding="utf-8")
    start(tmp_path / "a", stop_at=4, data={"name": "text", "path": str(path)})
    path.write_text("abcdefgh" * 41, encoding="utf-8")
    with pytest.raises(UserError, match="the text has changed since the run began"):
        resume(tmp_path / "a", {}, [])


def test_two_at_once_are_refused(tmp_path):
    from identcli.store.lock import locked

    start(tmp_path / "a", stop_at=4)
    with locked(tmp_path / "a"), pytest.raises(UserError, match=r"in use by another process, pid \d+"):
        resume(tmp_path / "a", {}, [])
