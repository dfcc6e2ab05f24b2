"""Several checkpoints: side by side, or one after the other as training went on."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Circuit
from identcli.checkpoints.audit import Audit, Row, audit_opened
from identcli.checkpoints.checkpoint import Checkpoint, open_checkpoint
from identcli.checkpoints.locate import CIRCUITS, NO_FLAGS, Flags
from identcli.store import checkpoints, folder

_STEP = re.compile(r"(?:step|checkpoint|iter|ckpt|epoch)[-_=]?0*(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Member:
    """One checkpoint of several. same_as: an earlier one with the same bytes, whose audit this is."""

    path: Path
    step: int | None
    audit: Audit
    same_as: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """What --json prints of it."""
        same = None if self.same_as is None else str(self.same_as)
        return {"path": str(self.path), "step": self.step, "same_as": same, **self.audit.to_dict()}


def members_of(path: Path) -> list[Path]:
    """All checkpoints at a path, in the order of training: a run's own, or folders below that name a step."""
    if folder.is_run(path):
        found = [checkpoints.at(path, step) for step in checkpoints.list_steps(path)]
    elif path.is_dir():
        found = [child for child in path.iterdir() if _STEP.search(child.name)]
    else:
        found = [path]
    if not found:
        raise UserError(f"{path}: no series of checkpoints there: none is named after its step, as step-500")
    return sorted(found, key=lambda one: (step_of(one) or 0, one.name))


def step_of(path: Path) -> int | None:
    """The training step that the name of a checkpoint tells."""
    match = _STEP.search(path.stem if path.is_file() else path.name)
    return int(match[1]) if match else None


def audit_all(
    paths: Sequence[Path],
    flags: Flags = NO_FLAGS,
    circuits: Sequence[Circuit] = CIRCUITS,
    progress: Callable[[str], Callable[[int, int], None]] | None = None,
) -> list[Member]:
    """Audit several checkpoints; one with the same bytes as an earlier one is found first and not audited again.

    progress: given a title, how far the audit under it has come.
    """
    opened = [open_checkpoint(path) for path in paths]
    sizes = [_size(one) for one in opened]
    known: dict[str, Member] = {}
    found = []
    for path, checkpoint, size in zip(paths, opened, sizes, strict=True):
        # Files of different sizes differ; only others are worth reading twice.
        digest = _digest(checkpoint) if sizes.count(size) > 1 else str(path)
        first = known.get(digest)
        if first is not None:
            found.append(Member(path, step_of(path), first.audit, first.path))
            continue
        judged = audit_opened(checkpoint, flags, circuits, progress(path.name) if progress else None)
        known[digest] = Member(path, step_of(path), judged)
        found.append(known[digest])
    return found


@dataclass(frozen=True)
class Difference:
    """One pair in two checkpoints. spectrum: ‖σ − σ'‖ / ‖σ‖ of its product's singular values, which no move changes."""

    first: Row
    second: Row
    spectrum: float


def differences(first: Audit, second: Audit) -> list[Difference]:
    """The pairs that both have. UserError when there are none, so that nothing is compared."""
    others = {(row.circuit, row.part, row.layer, row.group): row for row in second.rows}
    found = []
    for row in first.rows:
        other = others.get((row.circuit, row.part, row.layer, row.group))
        if other is not None and len(other.spectrum) == len(row.spectrum):
            changed = sum((a - b) ** 2 for a, b in zip(row.spectrum, other.spectrum, strict=True)) ** 0.5
            whole = sum(a * a for a in row.spectrum) ** 0.5
            found.append(Difference(row, other, changed / whole if whole else float("nan")))
    if not found:
        raise UserError(f"{first.path} and {second.path}: no pair of one is like a pair of the other")
    return found


def _size(checkpoint: Checkpoint) -> tuple[int, ...]:
    return tuple(file.stat().st_size for file in checkpoint.files)


def _digest(checkpoint: Checkpoint) -> str:
    digest = hashlib.sha256()
    for file in checkpoint.files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
