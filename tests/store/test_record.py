"""config.yaml, environment.json, status.json, sweep.json: written whole, read back as what they were."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from identcli.architecture.errors import UserError
from identcli.store import atomic, record, strictjson

FLOATS = [1e-5, 5e-4, 1e-3, 0.1, 1.0, 1e16, 1.5e300, -2e-7, 5e-324, 123456789.125, 0.0]
TEXTS = [
    "1e5",
    "123e456",
    "1E-3",
    "null",
    "true",
    "007",
    "on",
    "off",
    "y",
    "No",
    "~",
    "",
    " a ",
    "é",
    "李😀",
    "0o17",
    "0x1f",
]
TEXTS += [
    "1_000",
    "12:30",
    "2024-01-01",
    "nan",
    ".inf",
    "-",
    "a: b",
    "# x",
    "'",
    '"',
    "a\nb",
    "=",
    "<<",
    "*x",
    "&x",
    "!x",
    "%",
    "@",
]


@pytest.mark.parametrize("value", FLOATS)
def test_floats_stay_floats(tmp_path: Path, value: float) -> None:
    record.write_config(tmp_path, {"lr": value, "list": [value]})
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    for config in (record.read_config(tmp_path), yaml.safe_load(text)):
        assert config == {"lr": value, "list": [value]}
        assert type(config["lr"]) is float
    assert "." in text.splitlines()[0]


@pytest.mark.parametrize("value", TEXTS)
def test_text_stays_text(tmp_path: Path, value: str) -> None:
    config = {"name": value, value: [value]}
    record.write_config(tmp_path, config)
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert record.read_config(tmp_path) == config
    assert yaml.safe_load(text) == config
    assert all(type(read) is str for read in (record.read_config(tmp_path)["name"], yaml.safe_load(text)["name"]))


@pytest.mark.parametrize("value", ["1e5", "123e456", "1E-3", "0o17", "y", "nan", ".5e1", "-1e5"])
def test_text_that_other_readers_take_for_a_number_is_quoted(tmp_path: Path, value: str) -> None:
    record.write_config(tmp_path, {"name": value})
    assert (tmp_path / "config.yaml").read_text() == f"name: '{value}'\n"


def test_a_config_keeps_order_and_types(tmp_path: Path) -> None:
    shared = [0.9, 0.99]
    config = {"b": 1, "a": {"z": None, "y": True, "betas": shared, "again": shared}, "empty": [], "none": {}}
    record.write_config(tmp_path, config)
    assert json.dumps(record.read_config(tmp_path)) == json.dumps(config)
    assert "&" not in (tmp_path / "config.yaml").read_text()  # no anchors: people read this file


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "5e4", "+1e3", "-2e-7", "1.e5", ".5e1"])
def test_a_hand_written_exponent_is_a_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(f"lr: {text}\nname: '{text}'\n")
    config = record.read_config(tmp_path)
    assert config == {"lr": float(text), "name": text}
    assert isinstance(yaml.safe_load("lr: 1e-3")["lr"], str)  # PyYAML itself is left as it was


def test_a_config_executes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"
    (tmp_path / "config.yaml").write_text(f"x: !!python/object/apply:os.mkdir ['{target}']\n")
    with pytest.raises(UserError, match="config.yaml: can't be read as YAML: .*line 1") as caught:
        record.read_config(tmp_path)
    assert "\n" not in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1, 2", "config.yaml: can't be read as YAML: .*line 1"),
        (b"", "config.yaml: must hold keys and values, not NoneType"),
        (b"- 1", "config.yaml: must hold keys and values, not list"),
        (b"a: \xff", "config.yaml: can't be read as YAML: .*byte 0xff"),
    ],
)
def test_a_broken_config_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=message):
        record.read_config(tmp_path)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (record.read_config, "config.yaml"),
        (record.read_environment, "environment.json"),
        (record.read_status, "status.json"),
        (record.read_sweep, "sweep.json"),
    ],
)
def test_a_missing_or_broken_file_is_named(tmp_path: Path, read: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: no such file"):
        read(tmp_path)
    (tmp_path / name).write_text('{"state": "runn')
    with pytest.raises(UserError, match=f"{name}: can't be read as (JSON|YAML)"):
        read(tmp_path)
    (tmp_path / name).write_text("[]")
    with pytest.raises(UserError, match=f"{name}: must hold "):
        read(tmp_path)


def test_the_hash_tells_what_changes_the_results(tmp_path: Path) -> None:
    config = {"name": "a", "device": "cpu", "lr": 1e-3, "seed": 1, "model": {"bias": True, "n_head": 4}}
    known = record.config_hash(config)
    assert len(known) == 12
    assert int(known, 16) >= 0
    reordered = {"model": {"n_head": 4, "bias": True}, "seed": 1, "lr": 0.001}
    assert record.config_hash(reordered) == known
    assert record.config_hash(config | {"name": None, "device": "cuda"}) == known
    record.write_config(tmp_path, config)
    assert record.config_hash(record.read_config(tmp_path)) == known
    others = [config | {"lr": 1.1e-3}, config | {"seed": 2}, config | {"model": {"bias": False, "n_head": 4}}]
    assert len({known, *(record.config_hash(other) for other in others)}) == 4


def test_the_environment_is_described_without_importing_it(tmp_path: Path) -> None:
    record.write_environment(tmp_path, {"device": "cpu", "command": ["ident", "train", "name=é"]})
    environment = record.read_environment(tmp_path)
    assert environment["command"] == ["ident", "train", "name=é"]
    assert environment["device"] == "cpu"
    assert environment["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert environment["machine"]["cpu"]
    assert 1 <= environment["machine"]["usable_cores"] <= environment["machine"]["cores"]
    assert environment["packages"]["pyarrow"].split(".")[0].isdigit()
    assert environment["packages"]["torch"][0].isdigit()


def test_git_is_asked_about_the_package_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    from identcli.store import environment

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    tracked = tmp_path / Path(environment.__file__).name
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    tracked.write_text("1")
    assert environment._git(tmp_path) is None  # lies in a checkout that does not track it
    git("add", tracked.name)
    git("commit", "--quiet", "--message", "second")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside a git hook
    described = environment._git(tmp_path)
    monkeypatch.delenv("GIT_DIR")
    assert described == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    tracked.write_text("2")
    assert environment._git(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert environment._git(tmp_path) is None


def test_a_status_merges_and_is_stamped(tmp_path: Path) -> None:
    record.write_status(tmp_path, state="running", step=0, steps=500, train_loss=float("nan"), error=None)
    first = record.read_status(tmp_path)
    assert first["train_loss"] is None
    assert first["pid"] == os.getpid()
    assert first["host"]
    record.write_status(tmp_path, state="failed", step=7, error="é: \N{SKULL}", train_loss=float("inf"), pid=1)
    second = record.read_status(tmp_path)
    assert (second["state"], second["step"], second["steps"]) == ("failed", 7, 500)
    assert second["error"] == "é: \N{SKULL}"
    assert second["started"] == first["started"]
    assert second["updated"] >= first["updated"]
    assert second["train_loss"] is None
    assert second["pid"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_state_outside_the_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="state 'done': must be one of running, finished, failed, diverged, interrupted"
    ):
        record.write_status(tmp_path, state="done")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    record.write_status(tmp_path, state="running", step=1)
    before = (tmp_path / "status.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, full)
        with pytest.raises(OSError, match="No space left"):
            record.write_status(tmp_path, state="running", step=2)
    assert (tmp_path / "status.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_reader_at_work_keeps_the_old_file_whole(tmp_path: Path) -> None:
    record.write_status(tmp_path, state="running", step=1)
    with (tmp_path / "status.json").open() as opened:
        record.write_status(tmp_path, state="running", step=2, error="x" * 10_000)
        assert json.load(opened)["step"] == 1
    assert record.read_status(tmp_path)["step"] == 2


def test_text_is_utf8_with_its_own_line_ends(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "x", "é\r\n\n")
    assert (tmp_path / "x").read_bytes() == b"\xc3\xa9\r\n\n"


def test_json_is_strict() -> None:
    numpy = pytest.importorskip("numpy")
    value = {"a": [1.5, float("nan"), (float("-inf"), True)], 3: numpy.array([[1.0, numpy.nan]]), "p": Path("x/y")}
    text = strictjson.to_text(value | {"s": numpy.float64("inf"), "f": numpy.float32(0.5), "i": numpy.int64(2)})
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "a": [1.5, None, [None, True]],
        "3": [[1.0, None]],
        "p": str(Path("x/y")),
        "s": None,
        "f": 0.5,
        "i": 2,
    }
    with pytest.raises(TypeError, match="object .* has no JSON form"):
        strictjson.to_text({"a": object()})


def test_a_sweep_goes_both_ways(tmp_path: Path) -> None:
    sweep = {"command": ["ident", "sweep"], "points": [{"folder": "lr_0.5", "overrides": ["lr=0.5"], "hash": "ab"}]}
    record.write_sweep(tmp_path, sweep)
    assert record.read_sweep(tmp_path) == sweep


@pytest.mark.parametrize(
    "point", [{"folder": "../run1"}, {"folder": ".."}, {"folder": ""}, {"folder": 3}, {}, "lr_0.5"]
)
def test_a_sweep_points_into_its_own_folder_only(tmp_path: Path, point: Any) -> None:
    record.write_sweep(tmp_path, {"points": [{"folder": "fine"}, point]})
    with pytest.raises(UserError, match="sweep.json: point 1 names no folder of the sweep"):
        record.read_sweep(tmp_path)


def test_a_sweep_without_points_is_refused(tmp_path: Path) -> None:
    record.write_sweep(tmp_path, {"command": []})
    with pytest.raises(UserError, match="sweep.json: has no list of points"):
        record.read_sweep(tmp_path)
