"""events.jsonl: one whole JSON object a line, whatever was interrupted."""

import json
import os
from pathlib import Path

import pytest

from identcli.architecture.errors import UserError
from identcli.store import events


def test_events_come_back_in_order(tmp_path: Path) -> None:
    assert events.read(tmp_path) == []
    written = [
        {"step": k, "event": "rebalance", "circuit": "qk", "beta_after": [[0.0, 1e-9]], "é": "a\nb"} for k in (2, 1)
    ]
    for event in written:
        events.append(tmp_path, event)
    assert events.read(tmp_path) == written
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 2


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    events.append(tmp_path, {"loss": float("nan"), "beta": [[float("inf"), 1.0]], "worst": float("-inf")})
    text = (tmp_path / "events.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "loss": None,
        "beta": [[None, 1.0]],
        "worst": None,
    }


@pytest.mark.parametrize("rest", [b'{"step": 3, "ev', b"{", b'{"step": 3}', b"\xff" * 10_000])
def test_a_half_written_line_never_happened(tmp_path: Path, rest: bytes) -> None:
    events.append(tmp_path, {"step": 1})
    events.append(tmp_path, {"step": 2})
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(rest)
    assert events.read(tmp_path) == [{"step": 1}, {"step": 2}]
    events.append(tmp_path, {"step": 4})
    assert events.read(tmp_path) == [{"step": 1}, {"step": 2}, {"step": 4}]


def test_a_file_that_is_one_half_written_line(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"st')
    assert events.read(tmp_path) == []
    events.append(tmp_path, {"step": 1})
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"step": 1}\n'


def test_a_write_cut_short_by_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events.append(tmp_path, {"step": 1})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
        with pytest.raises(OSError, match="events.jsonl: the event could not be written in one piece"):
            events.append(tmp_path, {"step": 2})
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"step": 1}\n'


@pytest.mark.parametrize(
    ("line", "reason"), [(b"{broken", "can't be read as JSON"), (b"[1]", "must be a JSON object, not list")]
)
def test_a_broken_line_between_whole_ones_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(UserError, match=f"events.jsonl, line 2: {reason}"):
        events.read(tmp_path)


def test_a_resume_keeps_what_it_will_not_repeat(tmp_path: Path) -> None:
    events.keep(tmp_path, lambda event: True)
    assert not (tmp_path / "events.jsonl").exists()
    for step in (100, 200, 300):
        events.append(tmp_path, {"step": step, "event": "rebalance"})
    events.keep(tmp_path, lambda event: event["step"] <= 200)
    assert [event["step"] for event in events.read(tmp_path)] == [100, 200]
