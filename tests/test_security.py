"""Nothing in a config, a run folder or a checkpoint runs code or writes elsewhere: attacks, as whole commands."""

import hashlib
import itertools
import json
import os

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.cli.app import answer
from identcli.runs.resume import resume
from identcli.runs.train import run
from identcli.store import checkpoints, record
from identcli.store.checkpoints import BrokenCheckpoint
from small_run import config


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stopped(here):
    folder = here / "outputs/run1"
    folder.mkdir(parents=True)
    run(config(stop_at=4, checkpoint={"every": 2}), folder, ["ident"], live=False)
    return folder


class Payload:
    def __reduce__(self):
        return (open, ("written", "w"))


EVIL = [
    "hydra: {callbacks: {x: {_target_: pathlib.Path.touch, self: written}}}",
    "hydra: {callbacks: {x: {_target_: hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher}}}",
    "hydra: {callbacks: {x: '${oc.decode:\"{_target_: pathlib.Path.touch, self: written}\"}'}}",
    "hydra: {launcher: {_target_: pathlib.Path.touch}}",
    "defaults: [{override /hydra/launcher: submitit_slurm}]\nhydra: {launcher: {setup: [touch written]}}",
    "hydra: {sweeper: {_target_: pathlib.Path.touch, self: written}}",
    "hydra: {job: {env_set: {LD_PRELOAD: evil.so}}}",
    "hydra: {job_logging: {handlers: {h: {(): pathlib.Path.touch}}}}",
    "hydra: {job_logging: {formatters: {f: {class: evil.Formatter}}}}",
    "hydra: {job_logging: {root: {_target_: pathlib.Path.touch}}}",
    "hydra: {hydra_logging: {handlers: {h: {class: logging.FileHandler, filename: 'ext://evil.attribute'}}}}",
    "model: {_target_: pathlib.Path.touch, self: written}",
    "data: {name: text, path: '${oc.create:{_target_: pathlib.Path.touch}}'}",
]


@pytest.mark.parametrize(("text", "command"), list(zip(EVIL, itertools.cycle(["train", "sweep"]), strict=False)))
def test_a_yaml_of_somebody_else(here, capsys, text, command):
    if "submitit" in text:
        pytest.importorskip("submitit", reason="pip install hydra-submitit-launcher")
    (here / "theirs/experiment").mkdir(parents=True)
    (here / "theirs/experiment/evil.yaml").write_text(f"# @package _global_\n{text}\n")
    assert answer([command, "experiment=evil", "--config-dir", "theirs"]) == 2
    assert "refused, for a config may not name code to call" in capsys.readouterr().err
    assert os.listdir(here) == ["theirs"]


def test_a_config_yaml_of_somebody_else(here, capsys):
    (here / "theirs").mkdir()
    (here / "theirs/config.yaml").write_text("hydra: {searchpath: ['pkg://evil']}\n")
    assert answer(["train", "--config-dir", "theirs"]) == 2
    assert "theirs/config.yaml: hydra.searchpath: refused" in capsys.readouterr().err


def test_a_config_in_a_run_folder(stopped, here, capsys):
    whole = (stopped / "config.yaml").read_text()
    for extra in (
        "_target_: pathlib.Path.touch\n",
        "x: !!python/object/apply:pathlib.Path.touch [written]\n",
        "hydra: {callbacks: {x: {_target_: pathlib.Path.touch, self: written}}}\n",
    ):
        (stopped / "config.yaml").write_text(whole + extra)
        for command in (["train", "--resume"], ["sample"]):
            assert answer([*command, "outputs/run1"]) == 2
        answer(["runs", "outputs/run1"])
    capsys.readouterr()
    assert not (here / "written").exists()


def test_a_pickle_with_a_payload_in_a_checkpoint(stopped, here):
    place = checkpoints.latest(stopped).path
    torch.save({"step": 4, "optimizer": Payload()}, place / "state.pt")
    content = (place / "state.pt").read_bytes()
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BrokenCheckpoint, match="state.pt: can't be read"):
        resume(stopped, {}, [], live=False)
    assert not (here / "written").exists()
    torch.load(place / "state.pt", weights_only=False)
    assert (here / "written").exists(), "the payload is one"


@pytest.mark.parametrize("word", ["name=../out", "name=/tmp/out", "name=..", "name=a/b", 'name="~"', "name=.hidden"])
def test_a_name_is_no_path(here, capsys, word):
    code = answer(["train", word, "data=text", "data.path=nowhere"])
    assert code == 2
    told = capsys.readouterr().err
    assert ("name=" in told) == (word != 'name="~"'), "a tilde is a plain name here"
    assert os.listdir(here) == []


def test_a_sweep_has_no_points_elsewhere(here, capsys):
    (here / "s").mkdir()
    record.write_sweep(here / "s", {"points": [{"folder": "../x", "overrides": [], "hash": "0", "config": {}}]})
    assert answer(["sweep", "--resume", "s"]) == 2
    assert "names no folder of the sweep: '../x'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.log", ".lock", "events.jsonl", "metrics/train", "checkpoints"])
def test_a_link_out_of_the_run_folder(stopped, here, name):
    place, away = stopped / name, here / "precious"
    place.rename(away)
    place.symlink_to(away)
    before = sorted((path, path.stat().st_mtime_ns) for path in away.rglob("*"))
    with pytest.raises(UserError, match=f"{name}: a link out of the folder: refused to write there"):
        resume(stopped, {}, [], live=False)
    assert sorted((path, path.stat().st_mtime_ns) for path in away.rglob("*")) == before


def test_a_link_that_stays_inside_is_fine(stopped):
    (stopped / "newest").symlink_to(checkpoints.latest(stopped).path)
    assert resume(stopped, {}, [], live=False).state == "finished"
