"""checkpoints/step-000500/: the state after 500 updates, whole or recognisably not.

model.safetensors   the model's tensors under their own names, and nothing else
state.pt            the rest that an exact resume needs: plain containers, numbers, text and tensors
manifest.json       size and SHA-256 of both, written last
"""

import hashlib
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from identcli.architecture.errors import UserError
from identcli.store import atomic, strictjson

if TYPE_CHECKING:
    import torch

MODEL, STATE, MANIFEST = "model.safetensors", "state.pt", "manifest.json"


class BrokenCheckpoint(UserError):
    """A checkpoint, or a file of it, that is missing, cut short or altered; the text says which and how."""


class Latest(NamedTuple):
    """The newest whole checkpoint, and the newer ones passed over with the reason for each, newest first."""

    path: Path | None
    skipped: list[tuple[Path, str]]


def at(folder: Path, step: int) -> Path:
    """Where a run keeps its checkpoint after `step` updates."""
    return folder / "checkpoints" / f"step-{step:06d}"


def save(folder: Path, step: int, tensors: Mapping[str, "torch.Tensor"], state: dict[str, Any]) -> Path:
    """Write the checkpoint after `step` updates and return its folder.

    It is built under a temporary name and renamed when all of it is on the disk. Views, shared storage and other
    devices are fine: each name stores its own contiguous copy (so name a tied tensor once). One of the same step is
    replaced. TypeError, before anything is written: `state` holds what could only be read back by unpickling code.
    """
    import torch
    from safetensors.torch import save_file

    _check_plain(state, "state")
    final = at(folder, step)
    final.parent.mkdir(exist_ok=True)
    _remove_leftovers(final.parent)
    draft = atomic.temporary(final)
    draft.mkdir()
    try:
        copies = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        save_file(copies, draft / MODEL)
        torch.save(state, draft / STATE)
        for name in (MODEL, STATE):
            atomic.sync_file(draft / name)
        files = {name: _fingerprint(draft / name) for name in (MODEL, STATE)}
        atomic.write_text(draft / MANIFEST, strictjson.to_text({"step": step, "files": files}, indent=2) + "\n")
        if final.exists():
            # A folder can't be renamed over a full one. A kill between the two renames loses this step, no other.
            os.rename(final, atomic.temporary(final))
        os.rename(draft, final)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    atomic.sync_folder(final.parent)
    _remove_leftovers(final.parent)
    return final


def list_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint folder, ascending; whether it is whole is not asked."""
    try:
        found = [re.fullmatch(r"step-(\d{6,})", name) for name in os.listdir(folder / "checkpoints")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match[1]) for match in found if match)


def latest(folder: Path) -> Latest:
    """The newest checkpoint whose files all have the size and SHA-256 of its manifest."""
    skipped = []
    for step in reversed(list_steps(folder)):
        path = at(folder, step)
        try:
            for name in (MODEL, STATE):
                _check(path, name)
        except BrokenCheckpoint as broken:
            skipped.append((path, str(broken)))
        else:
            return Latest(path, skipped)
    return Latest(None, skipped)


def load_tensors(path: Path) -> dict[str, "torch.Tensor"]:
    """The model's tensors of a checkpoint folder, on the CPU. BrokenCheckpoint when they are not what was saved."""
    _check(path, MODEL)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path / MODEL)
    except SafetensorError as error:
        raise BrokenCheckpoint(f"{path / MODEL}: can't be read: {error}") from None


def load_state(path: Path) -> dict[str, Any]:
    """The `state` of a checkpoint folder, its tensors on the CPU, without ever unpickling code."""
    _check(path, STATE)
    import torch

    try:
        return torch.load(path / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # what a crafted file makes the reader raise is anybody's guess
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise BrokenCheckpoint(f"{path / STATE}: can't be read: {reason}") from None


def _check(path: Path, name: str) -> None:
    """BrokenCheckpoint unless the file is exactly the one that was saved."""
    if not path.is_dir():
        raise BrokenCheckpoint(f"{path}: no such checkpoint")
    try:
        expected = strictjson.read_object(path / MANIFEST)["files"][name]
        size, digest = expected["bytes"], expected["sha256"]
    except UserError as error:
        raise BrokenCheckpoint(str(error)) from None
    except (KeyError, TypeError):
        raise BrokenCheckpoint(f"{path / MANIFEST}: does not describe {name}") from None
    file = path / name
    if not file.is_file():
        raise BrokenCheckpoint(f"{file}: is missing")
    if file.stat().st_size != size:
        raise BrokenCheckpoint(f"{file}: has {file.stat().st_size} bytes, was saved with {size}")
    if _fingerprint(file)["sha256"] != digest:
        raise BrokenCheckpoint(f"{file}: its content is not what was saved (SHA-256 differs)")


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _check_plain(value: Any, place: str) -> None:
    """TypeError naming the place of the first value that `torch.load(weights_only=True)` would refuse."""
    import torch

    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            _check_plain(key, f"a key of {place}")
            _check_plain(entry, f"{place}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, entry in enumerate(value):
            _check_plain(entry, f"{place}[{index}]")
    elif value is not None and type(value) not in (bool, int, float, str, bytes, torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{place}: {type(value).__module__}.{type(value).__qualname__} is no plain value to store")


def _remove_leftovers(checkpoints: Path) -> None:
    """Remove what earlier kills left unfinished, and what has been replaced."""
    for path in checkpoints.glob(f"{atomic.TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)
