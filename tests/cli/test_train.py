"""`ident train`: what it prints, what it writes, and what bad input gets."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from identcli.cli.app import answer
from identcli.store import record

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16"]
SMALL += ["model.block_size=8", "batch_size=2", "steps=2", "eval.batches=1", "threads=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_prints_its_folder_and_can_be_listed_and_sampled(here, capsys):
    assert answer(["train", *SMALL, "case=sgd", "lr=1e-3"]) == 0
    said = capsys.readouterr()
    assert said.out == "outputs/run1\n"
    folder = here / "outputs/run1"
    assert record.read_status(folder)["state"] == "finished"
    assert record.read_config(folder)["lr"] == 1e-3
    assert record.read_environment(folder)["command"][:3] == ["ident", "train", "data=markov"]
    assert not list(here.rglob("*hydra*")), "Hydra leaves no files of its own"

    assert answer(["runs", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["case"], row["lr"], row["state"], row["step"]) == ("sgd", 1e-3, "finished", 2)
    assert answer(["runs"]) == 0
    assert "outputs/run1  sgd   0.001  finished   2/2" in capsys.readouterr().out
    assert answer(["runs", "outputs/run1"]) == 0
    assert "what       SGD\nstate      finished\nstep       2 of 2\n" in capsys.readouterr().out

    assert answer(["sample", "outputs/run1", "--prompt", "aé"]) == 2
    assert "'é' (U+00E9) at 1" in capsys.readouterr().err
    assert answer(["sample", "outputs/run1", "--prompt", "ab", "--length", "5"]) == 0
    capsys.readouterr()
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary[:-3]))
    assert answer(["sample", "outputs/run1"]) == 2
    said = "error: outputs/run1/vocabulary.json: has 13 characters, the checkpoint 16\n"
    assert capsys.readouterr().err == said, "a vocabulary of another run"


def test_a_name_is_taken_once_and_a_run_without_checkpoint_has_nothing_to_sample(here, capsys):
    assert answer(["train", *SMALL, "name=1e5", "checkpoint.every=0"]) == 0
    assert record.read_config(here / "outputs/1e5")["name"] == "1e5"
    capsys.readouterr()
    assert answer(["train", *SMALL, "name=1e5"]) == 2
    assert capsys.readouterr().err.startswith("error: outputs/1e5 exists already: ")
    assert answer(["sample", "outputs/1e5"]) == 2
    assert "checkpoint.every=…" in capsys.readouterr().err


def test_a_run_is_resumed_in_its_own_folder(here, capsys):
    assert answer(["train", *SMALL]) == 0
    assert answer(["train", "--resume", "outputs/run1"]) == 2, "nothing is left to do"
    capsys.readouterr()
    assert answer(["train", "--resume", "outputs/run1", "steps=1e1"]) == 0
    assert capsys.readouterr().out == "outputs/run1\n"
    assert record.read_status(here / "outputs/run1")["step"] == 10
    assert answer(["train", "--resume", "outputs/run1", "optimizer=sgd", "lrr=1", "lr=1,2"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: lrr: no such option. Did you mean lr?",
        """error: lr=1,2: several values: ident sweep runs them all; one text with a comma is 'lr="1,2"'""",
        "error: optimizer=sgd: a run is resumed with the choices it began with; single keys may change",
    ]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["optimzer=sgd", "lr=abc"],
            ["optimzer: no such option. Did you mean optimizer?", "lr='abc': must be a valid number"],
        ),
        (["data=text", "data.path=nowhere.txt"], None),
        (["data=markov", "data.length=20"], None),
    ],
    ids=["config", "no file", "too short"],
)
def test_bad_input_leaves_nothing(words, lines, here, capsys):
    assert answer(["train", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    errors = said.err.splitlines()
    assert all(line.startswith("error: ") for line in errors)
    assert lines is None or errors == [f"error: {line}" for line in lines]
    assert list(here.iterdir()) == []


def test_a_chosen_folder_must_be_free(here, capsys):
    (here / "mine").mkdir()
    (here / "mine/file").touch()
    assert answer(["train", *SMALL, "hydra.run.dir=mine"]) == 2
    assert capsys.readouterr().err == "error: mine exists already: choose another folder\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train", "--cfg", "job", "--package", "optimizer", "optimizer=sgd"], "# @package optimizer\nname: sgd\n"),
        (["train", "--cfg", "hydra", "-p", "hydra.launcher", "hydra/launcher=joblib"], "# @package hydra.launcher\n"),
        (["sweep", "--cfg", "job", "-p", "rebalance", "lr=1,2", "rebalance=on"], "# @package rebalance\nmode: 'on'\n"),
        (["train", "--info", "searchpath"], "\nConfig search path\n"),
    ],
    ids=["cfg job", "cfg hydra", "sweep", "info"],
)
def test_flags_that_only_show(words, shown, here):
    # In a process of its own: Hydra's --info sets up logging for the whole of it.
    line = f"import sys; from identcli.cli.app import answer; sys.exit(answer({words!r}))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(shown)
    assert list(here.iterdir()) == []


def test_ctrl_c_ends_with_130_and_a_readable_run(here):
    main_thread = threading.main_thread().ident

    def interrupt():
        status = here / "outputs/run1/status.json"
        while not status.exists() or record.read_status(status.parent)["step"] < 1:
            time.sleep(0.01)
        signal.pthread_kill(main_thread, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert answer(["train", *SMALL, "steps=1e6", "checkpoint.every=1"]) == 130
    assert record.read_status(here / "outputs/run1")["state"] == "interrupted"
