"""Loggers: checked before the run, told of every metric, and never able to end a run."""

import sys
from types import ModuleType

import numpy as np
import pytest

from identcli.architecture.errors import UserError
from identcli.runs import loggers
from identcli.runs.train import prepare, run
from identcli.store import metrics, record
from small_run import config


class Heard:
    """A logger that keeps what it is told; from `fails_at` calls on it is broken."""

    def __init__(self, fails_at=10**9):
        self.said, self.closed, self.fails_at = [], False, fails_at

    def log(self, step, values):
        if len(self.said) >= self.fails_at:
            raise ConnectionError("nobody\nlistens")
        self.said.append((step, values))

    def close(self):
        print("uploading …")
        self.closed = True


@pytest.fixture
def fakes(monkeypatch):
    made = {}

    def offer(name, logger, fails=None):
        module = ModuleType(name)

        def start(folder, config):
            if fails:
                raise fails
            made["started"] = (folder.name, config["lr"])
            return logger

        module.start = start
        monkeypatch.setitem(sys.modules, f"identcli.runs.loggers.to_{name}", module)
        monkeypatch.setitem(loggers.PACKAGES, name, ("json", "nothing"))
        return made

    return offer


def go(folder, **changes):
    folder.mkdir()
    return run(config(**changes), folder, ["ident"], live=False)


def test_a_logger_is_told_of_losses_and_medians(fakes, tmp_path, capsys):
    heard = Heard()
    made = fakes("wandb", heard)
    assert go(tmp_path / "run", loggers=["wandb"]).state == "finished"
    assert made["started"] == ("run", 0.25)
    assert heard.closed
    said = capsys.readouterr()
    assert "uploading …" not in said.out
    assert "uploading …" in said.err
    told = {(step, name): value for step, values in heard.said for name, value in values.items()}
    train, heads = metrics.read(tmp_path / "run", "train"), metrics.read(tmp_path / "run", "heads")
    assert [np.float32(told[step, "train/loss"]) for step in range(8)] == list(train["loss"])
    assert {step for step, name in told if name == "eval/val"} == {0, 4, 8}
    rows = (heads["step"] == 4) & (heads["circuit"] == "ov")
    assert told[4, "ov/beta"] == pytest.approx(np.median(heads["beta"][rows]), rel=1e-6)
    assert {name for _, name in told} >= {"qk/rho", "qk/beta", "train/lr", "train/grad_norm", "eval/train"}


@pytest.mark.parametrize("broken", [{"logger": Heard(fails_at=3)}, {"logger": None, "fails": OSError("no server")}])
def test_a_broken_logger_is_dropped_with_one_warning(fakes, tmp_path, capsys, broken):
    good = Heard()
    fakes("mlflow", good)
    fakes("wandb", **broken)
    assert go(tmp_path / "run", loggers=["wandb", "mlflow"]).state == "finished"
    assert capsys.readouterr().err.count("logger wandb dropped: ") == 1
    assert "logger wandb dropped" in (tmp_path / "run/run.log").read_text()
    assert good.closed


def test_loggers_change_neither_the_result_nor_the_identity(fakes, tmp_path):
    fakes("wandb", Heard())
    for name, chosen in (("with", ["wandb"]), ("without", [])):
        go(tmp_path / name, loggers=chosen)
    one, two = (metrics.read(tmp_path / name, "train")["loss"] for name in ("with", "without"))
    assert np.array_equal(one, two)
    assert len({record.config_hash(config(loggers=chosen).to_dict()) for chosen in (["wandb"], [])}) == 1


def test_a_missing_package_is_said_before_the_run(monkeypatch):
    monkeypatch.setitem(loggers.PACKAGES, "mlflow", ("not_there_at_all", "mlflow-skinny"))
    with pytest.raises(UserError, match=r"^loggers=\[mlflow\] needs a package: pip install mlflow-skinny$"):
        prepare(config(loggers=["mlflow"]))
    with pytest.raises(UserError, match=r"loggers\[0\]='mlfow': must be "):
        config(loggers=["mlfow"])


def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    go(tmp_path / "run", loggers=["tensorboard"])
    read = EventAccumulator(str(tmp_path / "run/tensorboard"))
    read.Reload()
    losses = [event.value for event in read.Scalars("train/loss")]
    assert losses == pytest.approx(metrics.read(tmp_path / "run", "train")["loss"])
