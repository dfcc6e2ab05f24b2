"""Fetching against a server on this machine that answers rightly, wrongly or not at all."""

import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import identcli.data.fetch as fetching
from identcli.architecture.errors import UserError
from identcli.data.fetch import (
    KnownFile,
    NoAnswer,
    Source,
    cache_folder,
    fetch,
    offline,
    url_source,
    write_atomically,
)

RIGHT = b"to be or not to be\n" * 5000
FILE = KnownFile("play.txt", len(RIGHT), hashlib.sha256(RIGHT).hexdigest())


class Handler(BaseHTTPRequestHandler):
    """/right, /wrong, /long, /cut (promises more than it sends), /silent, and 404 for all else."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        bodies = {"/right": RIGHT, "/wrong": b"x" * len(RIGHT), "/long": RIGHT + b"x", "/cut": RIGHT[:100]}
        if self.path == "/silent":
            self.server.wake.wait(5)
            return
        if self.path not in bodies:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(RIGHT) if self.path == "/cut" else len(bodies[self.path])))
        self.end_headers()
        self.wfile.write(bodies[self.path])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Handler,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.wake = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.wake.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("IDENT_OFFLINE", raising=False)
    return tmp_path / "ident" / "play.txt"


def at(server: ThreadingHTTPServer, path: str) -> Source:
    return url_source(f"http://127.0.0.1:{server.server_port}{path}", len(RIGHT))


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_the_first_right_answer_is_cached_and_asked_for_once(server, cache):
    fetched = fetch(FILE, [at(server, "/missing"), at(server, "/right"), at(server, "/never")])
    assert (fetched.data, fetched.path, fetched.notes) == (RIGHT, cache, [])
    assert fetched.source.endswith("/right")
    assert cache.read_bytes() == RIGHT
    again = fetch(FILE, [at(server, "/right")])
    assert (again.data, again.source) == (RIGHT, "cache")
    assert server.RequestHandlerClass.asked == ["/missing", "/right"]
    assert os.listdir(cache.parent) == ["play.txt"]


def test_each_failing_source_has_its_reason(server, cache):
    dead = url_source(f"http://127.0.0.1:{dead_port()}/", len(RIGHT))
    sources = [at(server, path) for path in ("/missing", "/wrong", "/long", "/cut")] + [dead]
    with pytest.raises(NoAnswer) as error:
        fetch(FILE, sources)
    reasons = str(error.value).split("; ")
    expected = [
        f"cache {cache}: not there",
        "/missing: HTTP 404",
        f"/wrong: wrong bytes: {len(RIGHT)} with SHA-256 ",
        f"/long: wrong bytes: more than {len(RIGHT)}",
        "/cut: wrong bytes: 100 with SHA-256 ",
        "Connection refused",
    ]
    assert len(reasons) == len(expected)
    assert all(part in reason for part, reason in zip(expected, reasons, strict=True))
    assert "\n" not in str(error.value)
    assert not cache.exists()


def test_silence_ends_after_a_time_out(server, monkeypatch):
    monkeypatch.setattr(fetching, "CONNECT_S", 0.1)
    with pytest.raises(NoAnswer, match=r"/silent: .*timed out"):
        fetch(FILE, [at(server, "/silent")])


def test_a_slow_answer_ends_at_the_deadline(server, monkeypatch):
    monkeypatch.setattr(fetching, "DOWNLOAD_S", 0.0)
    with pytest.raises(NoAnswer, match=rf"of {len(RIGHT)} bytes after 0 s"):
        fetch(FILE, [at(server, "/right")])


@pytest.mark.parametrize("value", ["1", "yes"])
def test_offline_asks_nobody_but_the_cache(server, cache, monkeypatch, value):
    monkeypatch.setenv("IDENT_OFFLINE", value)
    with pytest.raises(NoAnswer, match=r"not there; .*/right: not asked, IDENT_OFFLINE is set"):
        fetch(FILE, [at(server, "/right")])
    assert server.RequestHandlerClass.asked == []
    write_atomically(cache, RIGHT)
    assert fetch(FILE, [at(server, "/right")]).source == "cache"


@pytest.mark.parametrize("value", ["", "0"])
def test_offline_can_be_said_to_be_off(monkeypatch, value):
    monkeypatch.setenv("IDENT_OFFLINE", value)
    assert not offline()


def test_a_rotten_cache_is_moved_aside_said_and_replaced(server, cache, caplog):
    rotten = RIGHT[:-1] + b"x"
    write_atomically(cache, rotten)
    fetched = fetch(FILE, [at(server, "/right")])
    assert fetched.data == cache.read_bytes() == RIGHT
    assert cache.with_name("play.txt.rotten").read_bytes() == rotten
    assert len(fetched.notes) == 1
    assert "wrong bytes" in fetched.notes[0]
    assert "moved aside to play.txt.rotten" in fetched.notes[0]
    assert caplog.messages == fetched.notes


def test_a_rotten_cache_is_no_answer(cache):
    write_atomically(cache, b"short")
    with pytest.raises(NoAnswer, match=r"cache .*: wrong bytes: 5 with .*moved aside"):
        fetch(FILE, [])


def test_a_cache_that_cannot_be_written_is_noted(server, tmp_path):
    (tmp_path / "ident").write_text("a file where the folder should be")
    fetched = fetch(FILE, [at(server, "/right")])
    assert fetched.data == RIGHT
    assert "can't be written" in fetched.notes[0]


def test_writing_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError("disk full")

    path = tmp_path / "file"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"after")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_the_cache_folder_follows_the_xdg_specification(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "ident"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        if sys.platform != "win32":
            assert cache_folder() == tmp_path / "home" / ".cache" / "ident"


def test_without_a_home_the_user_is_told_which_variable_to_set(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(UserError, match=r"no home folder for the cache: set XDG_CACHE_HOME"):
        cache_folder()
