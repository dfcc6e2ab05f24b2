"""`ident --help` answers at once, every command teaches, and wrong usage is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from identcli import __version__
from identcli.cli import app
from identcli.cli.app import answer
from identcli.runs import process

HEAVY = ("torch", "matplotlib", "hydra", "omegaconf", "pydantic", "pyarrow", "numpy", "rich", "yaml")
COMMANDS = [
    ["train"],
    ["sweep"],
    ["plot"],
    ["sample"],
    ["runs"],
    ["count"],
    ["audit"],
    ["rebalance"],
    ["verify"],
    ["verify", "lemmas"],
    ["data", "prepare"],
    ["data", "status"],
]


def test_help_imports_nothing_heavy():
    line = "import sys; from identcli.cli.app import answer; sys.exit(answer(['--help']))"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", line], capture_output=True, text=True, check=True)
    imported = {row.rsplit("|", 1)[-1].strip() for row in done.stderr.splitlines()}
    assert "typer" in imported, "the list of imports was read"
    assert {name.partition(".")[0] for name in imported}.isdisjoint(HEAVY)
    assert {name for name in imported if name.startswith("identcli.cli.")} == {"identcli.cli.app"}


def test_help_lists_every_command_in_one_line_each(capsys):
    assert answer(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(app.COMMANDS)
    assert list(dict.fromkeys(command for command, *_ in COMMANDS)) == list(app.COMMANDS)
    files = {path.stem for path in Path(app.__file__).parent.glob("*.py")}
    assert files.issuperset(app.COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_teaches_by_examples(command, capsys):
    assert answer([*command, "--help"]) == 0
    examples = capsys.readouterr().out.partition("Examples:")[2]
    assert examples.count(f"ident {' '.join(command)}") >= 2


def test_version(capsys):
    assert answer(["--version"]) == 0
    assert capsys.readouterr().out == f"ident {__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "error: no such command 'trian'. Did you mean 'train'?"),
        (["train", "--experimental-rerun", "x.pickle"], "error: no such option: --experimental-rerun"),
        (["train", "--resolve"], "error: --package and --resolve go with --cfg"),
        (["train", "--cfg", "jbo"], "error: --cfg jbo: must be one of job, hydra, all"),
        (["train", "--cfg", "job", "--package", "nope"], "error: --package nope: no such part of the config"),
        (["train", "--config-dir", "nowhere"], "error: --config-dir nowhere: no such folder"),
        (["plot"], "error: which runs? Name a path, or say --latest"),
        (["plot", "--latest"], "error: outputs: no run there yet: ident train makes one"),
        (["runs", "nowhere"], "error: nowhere: no such folder"),
        (["plot", "nowhere"], "error: nowhere: no such folder"),
        (["sample", "nowhere"], "error: nowhere: no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(words, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert answer(words) == 2
    said = capsys.readouterr()
    assert said.err == f"{line}\n"
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "others", "spins"),
    [
        ({}, True, "1000"),
        ({}, False, None),
        ({"GOMP_SPINCOUNT": "5"}, True, "5"),
        ({"OMP_WAIT_POLICY": "active"}, True, None),
    ],
)
def test_threads_do_not_spin_for_long_beside_other_work_unless_the_user_says_so(monkeypatch, given, others, spins):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what main() sets is taken back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(process, "_others_run", lambda: others)
    monkeypatch.setattr(sys, "argv", ["ident", "--version"])
    with pytest.raises(SystemExit):
        app.main()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it on Linux alone")
def test_another_process_that_runs_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert any(process._others_run() for _ in range(1000))
        finally:
            busy.kill()
