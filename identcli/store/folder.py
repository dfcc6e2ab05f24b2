"""Taking a run folder that nobody else has, and finding the runs that lie at a path."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from identcli.architecture.errors import UserError
from identcli.store.record import read_sweep


class NotARun(UserError):
    """The path holds no run; the text says what it is instead."""


def claim(parent: Path, name: str | None, prefix: str) -> Path:
    """Make a new folder under `parent` for this process alone, and return it.

    Without a `name` it is the prefix and one more than the highest number in use: run1, run2, … `mkdir` decides who
    gets a number, so processes that start together get different folders. `parent` is made when missing.
    UserError: a name that is not plain or exists already, a parent that can't hold folders.
    """
    if name is not None:
        check_name(name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if name is not None:
            folder = parent / name
            folder.mkdir()
            return folder
        number = _highest_number(parent, prefix) + 1
        while True:
            folder = parent / f"{prefix}{number}"
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except FileExistsError:
        if name is None or not parent.is_dir():
            raise UserError(f"{parent}: is a file; runs need a folder there") from None
        raise UserError(f"{parent / name} exists already: choose another name, or none to get a number") from None
    except OSError as error:
        raise UserError(f"{parent}: can't make a run folder there: {error.strerror}") from None


def check_name(name: str) -> None:
    """UserError unless `name` is one plain folder name that needs no quotes in an override or on another system."""
    if not name:
        raise UserError("name='': must not be empty")
    if name.startswith("."):
        raise UserError(f"name={name!r}: must not begin with a dot")
    for character in name:
        if character in "/\\=,:*?\"<>|'" or character.isspace() or not character.isprintable():
            raise UserError(f"name={name!r}: must be a plain folder name, without {character!r}")


def is_run(path: Path) -> bool:
    """Whether the folder is a run: only runs have a status.json."""
    return (path / "status.json").is_file()


def is_sweep(path: Path) -> bool:
    """Whether the folder is a sweep: only sweeps have a sweep.json."""
    return (path / "sweep.json").is_file()


def runs_in(path: Path) -> list[Path]:
    """The run itself; or the points of a sweep in their listed order; or all of these in the folders right below.

    A sweep's point that never started has no folder and is left out: `read_sweep` lists them all. Folders below are
    taken in natural order (run2 before run10). NotARun when nothing is found.
    """
    if is_run(path):
        return [path]
    if is_sweep(path):
        points = [path / point["folder"] for point in read_sweep(path)["points"]]
        runs = [point for point in points if is_run(point)]
        if not runs:
            raise NotARun(f"{path}: a sweep of which no point has started yet")
        return runs
    runs = []
    for child in _children(path):
        if is_run(child) or (is_sweep(child) and any(is_run(point) for point in _children(child))):
            runs += runs_in(child)
    if not runs:
        raise NotARun(_what_it_is(path))
    return runs


def no_links_out(path: Path) -> None:
    """UserError when a symbolic link inside leads out of the folder: what is written there would land elsewhere."""
    root = path.resolve()
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink() and not entry.resolve().is_relative_to(root):
                raise UserError(f"{path / entry.relative_to(root)}: a link out of the folder: refused to write there")


def one_run(path: Path) -> Path:
    """The path, if it is a run; otherwise NotARun, naming the runs that the user may have meant."""
    if not is_run(path):
        raise NotARun(_what_it_is(path))
    return path


def _what_it_is(path: Path) -> str:
    if not path.exists():
        near = get_close_matches(path.name, _names(_children(path.parent)), n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(str(path.parent / name) for name in near)}" if near else ""
        return f"{path}: no such folder{hint}"
    if not path.is_dir():
        return f"{path}: a file, not a run folder"
    runs = [child for child in _children(path) if is_run(child)]
    sweeps = [child for child in _children(path) if is_sweep(child)]
    if is_sweep(path):
        return f"{path}: a sweep, not one run" + (f": name one of {_listed(runs)}" if runs else "")
    if runs or sweeps:
        return f"{path}: a folder of runs: name one of {_listed(runs + sweeps)}"
    inside = next((parent for parent in path.absolute().parents if is_run(parent)), None)
    if inside is not None:
        return f"{path}: a folder inside the run {inside.name}, not a run"
    return f"{path}: no run: there is no status.json in it"


def _listed(paths: list[Path], most: int = 8) -> str:
    more = f", … ({len(paths)} in all)" if len(paths) > most else ""
    return ", ".join(_names(paths[:most])) + more


def _names(paths: Iterable[Path]) -> list[str]:
    return [path.name for path in paths]


def _children(path: Path) -> list[Path]:
    """Visible subfolders in natural order; none when the path can't be listed."""
    try:
        found = [Path(entry.path) for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(found, key=lambda child: [(text, int(n or -1)) for text, n in re.findall(r"(\D*)(\d*)", child.name)])


def _highest_number(parent: Path, prefix: str) -> int:
    taken = (re.fullmatch(rf"{re.escape(prefix)}(\d+)", name) for name in os.listdir(parent))
    return max((int(match[1]) for match in taken if match), default=0)
