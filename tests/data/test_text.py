import hashlib
import json
import os
import subprocess
import sys

import pytest

from identcli.architecture.errors import UserError
from identcli.data.corpora import load


def corpus_of(tmp_path, data: bytes):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    return load({"name": "text", "path": str(path)})


def test_every_byte_is_kept_and_the_split_is_nine_to_one(tmp_path):
    data = "é李😀abc\r\ndef\rghi\n\n".encode() * 7
    corpus = corpus_of(tmp_path, data)
    text = corpus.vocabulary.decode(corpus.tokens["train"]) + corpus.vocabulary.decode(corpus.tokens["val"])
    assert text.encode() == data
    n = len(data.decode())
    assert len(corpus.tokens["train"]) == int(0.9 * n)
    assert corpus.facts == {
        "name": "text",
        "path": str(tmp_path / "text.txt"),
        "source": "file",
        "notes": [],
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "characters": n,
        "vocabulary": 14,
        "train": int(0.9 * n),
        "val": n - int(0.9 * n),
        "line_endings": {"crlf": 7, "cr": 7, "lf": 14},
        "byte_order_mark": False,
        "entropy_rate": None,
    }
    json.dumps(corpus.facts)


def test_line_ends_make_another_vocabulary_and_another_hash(tmp_path):
    unix, dos = corpus_of(tmp_path, b"a\nb\n" * 9), corpus_of(tmp_path, b"a\r\nb\r\n" * 9)
    assert (len(unix.vocabulary), len(dos.vocabulary)) == (3, 4)
    assert unix.facts["sha256"] != dos.facts["sha256"]


def test_a_byte_order_mark_is_kept_and_said(tmp_path):
    corpus = corpus_of(tmp_path, "\ufeffab".encode())
    assert corpus.facts["byte_order_mark"]
    assert "\ufeff" in corpus.vocabulary.characters


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("é".encode() * 10 + b"\xff" + b"abc", r"text.txt: invalid UTF-8 at byte 20 \(0xff, "),
        ("abc李".encode()[:-1], r"invalid UTF-8 at byte 3 \(0xe6, unexpected end"),
        ("abc".encode("utf-16"), r"invalid UTF-8 at byte 0 \(0xff"),
        (b"a\xed\xa0\x80", r"invalid UTF-8 at byte 1"),
        (b"", r"text.txt: the file is empty"),
    ],
)
def test_bytes_that_are_no_text_are_refused(tmp_path, data, message):
    with pytest.raises(UserError, match=message) as error:
        corpus_of(tmp_path, data)
    assert "\n" not in str(error.value)


def test_places_that_are_no_file_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data.path=.*nothing.txt: no such file"):
        load({"name": "text", "path": str(tmp_path / "nothing.txt")})
    with pytest.raises(UserError, match=r": is a folder"):
        load({"name": "text", "path": str(tmp_path)})
    with pytest.raises(UserError, match=r"data.path is empty"):
        load({"name": "text", "path": ""})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "tiny_shakespear"}, r"data=tiny_shakespear: .* Did you mean tiny_shakespeare\?"),
        ({"name": "xyz"}, r"Choose one of tiny_shakespeare, text, markov"),
        ({}, r"data=None"),
        ({"name": "text"}, r"data=text: missing a required argument: 'path'"),
        ({"name": "text", "path": "a", "seed": 1}, r"data=text: .*'seed'"),
    ],
)
def test_unknown_corpora_and_arguments_are_refused(data, message):
    with pytest.raises(UserError, match=message):
        load(data)


def test_the_locale_changes_nothing(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("é李😀\r\nab".encode() * 20)
    script = (
        "import json, sys; from identcli.data.corpora import load; c = load({'name': 'text', 'path': sys.argv[1]});"
        "print(json.dumps([c.facts, c.vocabulary.to_list(), c.tokens['train'].tolist()]))"
    )
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, **ascii_locale, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        check=True,
    )
    here = load({"name": "text", "path": str(path)})
    there = json.loads(done.stdout)
    assert there == [here.facts, here.vocabulary.to_list(), here.tokens["train"].tolist()]
