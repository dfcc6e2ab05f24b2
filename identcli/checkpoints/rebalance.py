"""Writing a checkpoint anew with each pair at the nearest balanced point of its orbit: the same model, measurably.

Files are copied, and the bytes of the tensors that move are written over in the copy: whatever isn't attention, and all
names, dtypes, shards and metadata, stay as they were. The copy is made beside its place and renamed when it is whole.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.architecture.groups import Group
from identcli.architecture.pairs import Circuit
from identcli.checkpoints import pickled_file
from identcli.checkpoints.audit import Progress, bytes_of
from identcli.checkpoints.certificate import Certificate, Moved
from identcli.checkpoints.checkpoint import Checkpoint, holds_weights, open_checkpoint
from identcli.checkpoints.layer import Piece, again, all_finite, parts, piece, put, views
from identcli.checkpoints.locate import CIRCUITS, NO_FLAGS, Flags, NoAttention, locate
from identcli.checkpoints.tensor_file import Entry, read, write
from identcli.checkpoints.unjudged import Skipped
from identcli.checkpoints.workers import SMALL, each
from identcli.layouts.located import Located
from identcli.store import atomic
from identcli.symmetry.act import act
from identcli.symmetry.balance import balance
from identcli.symmetry.pair import Pair, augmented
from identcli.symmetry.product import change, triangles

CERTIFICATE = "certificate.json"
# Weights of other frameworks, which lie in the folders of some models.
_OTHER_WEIGHTS = (".h5", ".onnx", ".msgpack", ".gguf", ".tflite", ".ot")
# Given the checkpoint and the folder of the new one, says how far the model's outputs move.
OutputCheck = Callable[[Checkpoint, Path, Flags, Sequence[Circuit]], Mapping[str, object]]


def rebalance(
    path: Path,
    out: Path,
    flags: Flags = NO_FLAGS,
    circuits: Sequence[Circuit] = CIRCUITS,
    check_outputs: OutputCheck | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Write the checkpoint at `path` to `out`, balanced. UserError for bad input; then `out` isn't there.

    out: a folder; of a single file also a file of the same kind, with the certificate beside it.
    """
    checkpoint = open_checkpoint(path)
    found = locate(checkpoint, flags, circuits)
    if not found.located:
        why = "; ".join(f"{one.what}: {one.why}" for one in found.skipped)
        raise NoAttention(f"{path}: nothing that can be balanced: {why}")
    one_file = path.is_file() and len(checkpoint.files) == 1 and out.suffix == path.suffix
    notes = list(found.notes)
    with _beside(path, out) as draft:
        copy = _copied(checkpoint, draft, one_file, notes)
        moved = move(copy, found.located, progress)
        for file in {entry.file for entry in copy.entries.values()}:
            changed = {
                entry.start for name, entry in copy.entries.items() if entry.file == file and name in moved.names
            }
            pickled_file.mend_checksums(file, changed)
        skipped = [*found.skipped, *_left(moved.rows)]
        outputs = check_outputs(checkpoint, draft, flags, circuits) if check_outputs else None
        certificate = Certificate(str(path), str(out), found.layout, moved.rows, skipped, notes, outputs)
        atomic.write_text(draft / CERTIFICATE, certificate.to_json() + "\n")
        _finish(draft, out, copy.files[0].name if one_file else None)
    return certificate


class Moves(NamedTuple):
    """What moved, pair by pair, and the tensors that hold it."""

    rows: list[Moved]
    names: set[str]


def move(checkpoint: Checkpoint, located: Sequence[Located], progress: Progress | None = None) -> Moves:
    """Balance the pairs in the files of the checkpoint, in place, a layer at a time."""
    jobs = _jobs(checkpoint, located)
    small = all(bytes_of(checkpoint, pairs, layer) <= SMALL for job in jobs for pairs, layer in job)

    def work(job: list[tuple[Located, int]]) -> list[Moved]:
        rows = []
        for pairs, layer in job:
            tensors: dict[str, Tensor] = {}

            def get(name: str, tensors: dict[str, Tensor] = tensors) -> Tensor:
                tensors[name] = read(checkpoint.entry(name))
                return tensors[name]

            rows += move_layer(pairs, layer, views(pairs, layer, get), side_by_side=not small)
            for name, tensor in tensors.items():
                write(checkpoint.entry(name), tensor)
        return rows

    rows: list[Moved] = []
    for done, some in enumerate(each(jobs, work, side_by_side=small), start=1):
        rows += some
        if progress:
            progress(done, len(jobs))
    rows.sort(key=lambda row: (row.circuit != "qk", row.part))
    return Moves(rows, {name for pairs in located for layer in pairs.layers for name in pairs.names(layer)})


def move_layer(pairs: Located, layer: int, roles: Mapping[str, Tensor], *, side_by_side: bool = False) -> list[Moved]:
    """Balance one layer in the tensors behind its roles, and say what that did to each pair.

    Balanced are the weights alone (imbalance 0, as the paper has it); biases are carried along, and take part in the
    products that are compared. A pair keeps its bits where there is no balanced point, where its numbers aren't finite,
    and where the dtype of its tensors can't hold the balanced ones.
    """

    def work(groups: slice) -> list[Moved]:
        return _move_piece(pairs, layer, piece(pairs, roles, groups), roles)

    # Different kv groups lie in different parts of the tensors, so that none writes where another reads.
    return [row for rows in each(parts(pairs, roles), work, side_by_side=side_by_side) for row in rows]


def _move_piece(pairs: Located, layer: int, some: Piece, roles: Mapping[str, Tensor]) -> list[Moved]:
    group, finite = pairs.family.group, all_finite(some.pair)
    before = _where(finite, some.pair)
    step, exists = balance(group, Pair(before.A, before.B))
    exists &= finite
    after = _where(exists, act(step, some.pair), some.pair)
    put(some, after, roles)
    stored = again(some, roles)
    holds = all_finite(stored) | ~finite
    if not bool(holds.all()):
        after, stored = _where(holds, after, some.pair), _where(holds, stored, some.pair)
        put(some, stored, roles)
    after, stored = _where(finite, after), _where(finite, stored)
    columns = [_imbalance(before), _imbalance(after), _imbalance(stored)]
    start = augmented(group, before)
    columns.append(change(group, start, augmented(group, after)))
    del after
    columns.append(change(group, start, augmented(group, stored)))
    whys = _whys(group, exists, finite, holds)
    where = (pairs.family.circuit, pairs.part, layer)
    rows = zip(whys, torch.stack(columns)[:, 0].T.tolist(), strict=True)
    return [Moved(*where, at, a, b, c, d, e, why) for at, (why, (a, b, c, d, e)) in enumerate(rows, some.groups.start)]


def _where(mask: Tensor, pair: Pair, other: Pair | None = None) -> Pair:
    """The pairs (…) of the mask, and those of `other`, or zeros, for the rest."""
    if bool(mask.all()):
        return pair

    def chosen(part: Tensor, rest: Tensor | None) -> Tensor:
        return torch.where(mask[..., None, None], part, torch.zeros((), dtype=part.dtype) if rest is None else rest)

    rest = other or Pair(*([None] * 4))  # type: ignore[arg-type]
    a = None if pair.a is None else chosen(pair.a, rest.a)
    b = None if pair.b is None else chosen(pair.b, rest.b)
    return Pair(chosen(pair.A, rest.A), chosen(pair.B, rest.B), a, b)


def _whys(group: Group, exists: Tensor, finite: Tensor, holds: Tensor) -> list[str]:
    """Why each pair stays where it is; "" for those that moved."""
    no_point = "a rotated pair of rows is zero on one side" if group.rotary else "its product has not full rank"
    whys = []
    for known, sound, fits in zip(exists[0].tolist(), finite[0].tolist(), holds[0].tolist(), strict=True):
        if not sound:
            whys.append("it holds values that are not finite")
        elif not known:
            whys.append(f"no balanced point: {no_point}")
        else:
            whys.append("" if fits else "the balanced values overflow the dtype of the file")
    return whys


def _imbalance(pair: Pair) -> Tensor:
    of = triangles(Pair(pair.A, pair.B))
    AA, BB = of.A.mT @ of.A, of.B.mT @ of.B
    norm = torch.linalg.matrix_norm
    return norm(AA - BB) / (norm(AA) + norm(BB))


def _jobs(checkpoint: Checkpoint, located: Sequence[Located]) -> list[list[tuple[Located, int]]]:
    """The layers in sets that share no tensor, so that each set can be worked on alone."""
    sets: list[list[tuple[Located, int]]] = []
    owner: dict[tuple[Path, int], int] = {}
    for pairs in located:
        for layer in pairs.layers:
            entries = [checkpoint.entry(name) for name in pairs.names(layer)]
            keys = [(entry.file, entry.start) for entry in entries]
            number = next((owner[key] for key in keys if key in owner), len(sets))
            for other in {owner[key] for key in keys if key in owner} - {number}:
                sets[number] += sets[other]
                sets[other] = []
                owner |= {key: number for key, value in owner.items() if value == other}
            owner |= dict.fromkeys(keys, number)
            if number == len(sets):
                sets.append([])
            sets[number].append((pairs, layer))
    return [job for job in sets if job]


def _left(rows: Sequence[Moved]) -> list[Skipped]:
    """The pairs that stay as they are, by reason."""
    reasons: dict[tuple[str, str], list[Moved]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault((row.circuit, row.why), []).append(row)
    found = []
    for (circuit, why), some in reasons.items():
        first = f"{some[0].part} layer {some[0].layer}, group {some[0].group}".strip()
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        found.append(Skipped(f"{circuit} of {first}{more}", f"left as it is: {why}"))
    return found


@contextmanager
def _beside(path: Path, out: Path) -> Iterator[Path]:
    """A new folder beside `out` to build in; gone again when the block fails, or when it has been renamed."""
    if out.exists() or out.is_symlink():
        raise UserError(f"{out}: exists already; name another place, nothing is ever overwritten")
    certificate = out.with_name(f"{out.name}.{CERTIFICATE}")
    if certificate.exists():
        raise UserError(f"{certificate}: exists already; name another place, nothing is ever overwritten")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise UserError(f"{out}: there is no folder {parent}")
    if path.is_dir() and path.resolve() in (parent.resolve(), *parent.resolve().parents):
        raise UserError(f"{out}: lies inside the checkpoint {path}; name a place outside")
    draft = atomic.temporary(out.absolute())
    try:
        draft.mkdir()
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror}") from None
    try:
        yield draft
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copied(checkpoint: Checkpoint, draft: Path, one_file: bool, notes: list[str]) -> Checkpoint:
    """The checkpoint copied into the draft, companions and all."""
    root = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    for file in checkpoint.files if one_file else (*checkpoint.files, *checkpoint.beside):
        inside = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
        if inside.name == CERTIFICATE:
            continue
        (draft / inside).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, draft / inside)
        if file not in checkpoint.files and (holds_weights(file) or file.suffix in _OTHER_WEIGHTS):
            notes.append(f"{inside}: copied as it is, so it still holds what weights it held before")
    moved = {
        file: draft / (file.relative_to(root) if file.is_relative_to(root) else file.name) for file in checkpoint.files
    }
    entries: dict[str, Entry] = {
        name: replace(entry, file=moved[entry.file]) for name, entry in checkpoint.entries.items()
    }
    return replace(checkpoint, path=draft, entries=entries, files=tuple(moved.values()))


def _finish(draft: Path, out: Path, only: str | None) -> None:
    """Give the draft its name, once all of it is on the disk. only: the one file that is wanted, not a folder."""
    for file in draft.rglob("*"):
        if file.is_file():
            atomic.sync_file(file)
    if only is None:
        os.rename(draft, out)
    else:
        os.rename(draft / CERTIFICATE, out.with_name(f"{out.name}.{CERTIFICATE}"))
        os.rename(draft / only, out)
    atomic.sync_folder(out.absolute().parent)
