"""How far each pair of a checkpoint is from balance, and what of it no transformation can change."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.architecture.pairs import Circuit
from identcli.checkpoints.checkpoint import Checkpoint, open_checkpoint
from identcli.checkpoints.layer import all_finite, parts, piece, views
from identcli.checkpoints.locate import CIRCUITS, NO_FLAGS, Flags, NoAttention, Pairs, locate
from identcli.checkpoints.tensor_file import read
from identcli.checkpoints.unjudged import Skipped
from identcli.checkpoints.workers import SMALL, each
from identcli.layouts.located import Located
from identcli.symmetry.balance import balance
from identcli.symmetry.pair import Pair
from identcli.symmetry.product import spectrum, triangles

# A head stands out when it lies so many times further from the median than the median head does (0.6745 makes the unit
# a standard deviation for a normal distribution; 3.5 is the customary limit for this score).
OUTLIER = 3.5
# Differences of imbalance below this are those of rounding in half precision.
LEAST = 1e-4
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Row:
    """One pair: a kv group of a layer, in one circuit. Weights alone; biases take no part. Undefined values are NaN.

    beta ‖C‖_F with C = AAᵀ − BBᵀ. norm_aa, norm_bb: ‖AAᵀ‖_F and ‖BBᵀ‖_F. imbalance: beta / (norm_aa + norm_bb), from 0
    (balanced) to 1. tau: tr C. removable: the share of the imbalance that balancing under the group takes away; 0 where
    there is no balanced point. spectrum: singular values of BᵀA, which no move changes. condition: largest over
    smallest.
    """

    circuit: Circuit
    layer: int
    group: int
    beta: float
    imbalance: float
    norm_aa: float
    norm_bb: float
    tau: float
    part: str
    removable: float
    condition: float
    spectrum: tuple[float, ...]


@dataclass(frozen=True)
class Audit:
    """The audit of one checkpoint. moves: the group that acts on each circuit, in words."""

    path: Path
    layout: str
    rows: list[Row]
    skipped: list[Skipped]
    notes: list[str]
    moves: dict[str, str]

    def of(self, circuit: str) -> list[Row]:
        return [row for row in self.rows if row.circuit == circuit]

    @property
    def circuits(self) -> list[str]:
        return list(dict.fromkeys(row.circuit for row in self.rows))

    def summary(self) -> dict[str, Any]:
        """The model in few numbers: imbalance of each circuit, the pairs that stand out, and what is left out."""
        circuits = {}
        for circuit in self.circuits:
            known = [row.imbalance for row in self.of(circuit) if math.isfinite(row.imbalance)]
            removable = [row.removable for row in self.of(circuit) if math.isfinite(row.removable)]
            circuits[circuit] = {
                "pairs": len(self.of(circuit)),
                "group": self.moves[circuit],
                "imbalance_min": min(known, default=None),
                "imbalance_median": median(known) if known else None,
                "imbalance_max": max(known, default=None),
                "removable_median": median(removable) if removable else None,
            }
        return {
            "checkpoint": str(self.path),
            "layout": self.layout,
            "layers": len({(row.part, row.layer) for row in self.rows}),
            "pairs": len(self.rows),
            "circuits": circuits,
            "stands_out": [
                {**_where(row), "imbalance": row.imbalance, "score": score} for row, score in standing_out(self.rows)
            ],
            "not_audited": [{"what": one.what, "why": one.why} for one in self.skipped],
            "notes": self.notes,
        }

    def to_dict(self) -> dict[str, Any]:
        """What --json prints of one checkpoint."""
        pairs = [{key: value for key, value in vars(row).items() if key != "spectrum"} for row in self.rows]
        return {"summary": self.summary(), "pairs": pairs}


def audit(
    path: Path, flags: Flags = NO_FLAGS, circuits: Sequence[Circuit] = CIRCUITS, progress: Progress | None = None
) -> Audit:
    """Judge every pair of the checkpoint, layer by layer. UserError for bad input, NoAttention for none to judge."""
    return audit_opened(open_checkpoint(path), flags, circuits, progress)


def audit_opened(
    checkpoint: Checkpoint,
    flags: Flags = NO_FLAGS,
    circuits: Sequence[Circuit] = CIRCUITS,
    progress: Progress | None = None,
) -> Audit:
    """`audit` of a checkpoint that is open already."""
    found = locate(checkpoint, flags, circuits)
    rows: list[Row] = []
    notes = list(found.notes)
    jobs = [(pairs, layer) for pairs in found.located for layer in pairs.layers]
    small = all(bytes_of(checkpoint, *job) <= SMALL for job in jobs)
    layers = each(jobs, lambda job: _layer(checkpoint, *job, side_by_side=not small), side_by_side=small)
    for done, judged in enumerate(layers, start=1):
        rows += judged
        if progress:
            progress(done, len(jobs))
    if not rows:
        why = "; ".join(f"{one.what}: {one.why}" for one in found.skipped)
        raise NoAttention(f"{checkpoint.path}: nothing that can be audited: {why}")
    broken = [row for row in rows if math.isnan(row.norm_aa + row.norm_bb)]
    if broken:
        first = " ".join(str(value) for value in _where(broken[0]).values() if value != "")
        notes.append(f"{len(broken)} pairs hold values that are not finite, the first is {first}")
    rows.sort(key=lambda row: CIRCUITS.index(row.circuit) if row.circuit in CIRCUITS else 9)
    return Audit(checkpoint.path, found.layout, rows, found.skipped, notes, _moves(found))


def bytes_of(checkpoint: Checkpoint, pairs: Located, layer: int) -> int:
    """What the tensors of these pairs take in memory, in the file's dtype."""
    return sum(checkpoint.entry(name).bytes for name in pairs.names(layer))


def _layer(checkpoint: Checkpoint, pairs: Located, layer: int, *, side_by_side: bool) -> list[Row]:
    roles = views(pairs, layer, lambda name: read(checkpoint.entry(name)))

    def work(groups: slice) -> Judged:
        pair = piece(pairs, roles, groups).pair
        return judge(pairs.family.group, Pair(pair.A, pair.B))

    rows: list[Row] = []
    for judged in each(parts(pairs, roles), work, side_by_side=side_by_side):
        numbers = torch.stack(judged[:-1])[:, 0].T.tolist()
        values = judged.spectrum[0].tolist()
        for at, (of_pair, singular) in enumerate(zip(numbers, values, strict=True), start=len(rows)):
            beta, imbalance, norm_aa, norm_bb, tau, removable, condition = of_pair
            row = Row(
                *(pairs.family.circuit, layer, at, beta, imbalance, norm_aa, norm_bb, tau),
                part=pairs.part,
                removable=removable,
                condition=condition,
                spectrum=tuple(singular),
            )
            rows.append(row)
    return rows


class Judged(NamedTuple):
    """The numbers of a batch of pairs, each (…); spectrum (…, n)."""

    beta: Tensor
    imbalance: Tensor
    norm_aa: Tensor
    norm_bb: Tensor
    tau: Tensor
    removable: Tensor
    condition: Tensor
    spectrum: Tensor


def judge(group: Group, pair: Pair) -> Judged:
    """β, imbalance, norms, τ, what balancing removes, and the product's spectrum, of pairs (…, D, columns) in float64.

    All from one QR of each side. NaN where a value isn't defined: numbers that are not finite, a pair of zeros.
    """
    finite = all_finite(pair)
    if not finite.all():
        pair = Pair(*(torch.where(finite[..., None, None], side, 0) for side in (pair.A, pair.B)))
    of = triangles(pair)
    AA, BB = of.A.mT @ of.A, of.B.mT @ of.B
    C = AA - BB
    beta, norm_aa, norm_bb = (torch.linalg.matrix_norm(matrix) for matrix in (C, AA, BB))
    imbalance = beta / (norm_aa + norm_bb)
    tau = C.diagonal(dim1=-2, dim2=-1).sum(-1)
    values = spectrum(of)
    condition = values[..., 0] / values[..., -1]
    removable = _removable(group, pair, AA, BB, imbalance, values)
    nan = torch.where(finite, 0.0, torch.nan)
    numbers = (beta, imbalance, norm_aa, norm_bb, tau, removable, condition)
    beta, imbalance, norm_aa, norm_bb, tau, removable, condition = (number + nan for number in numbers)
    return Judged(beta, imbalance, norm_aa, norm_bb, tau, removable, condition, values + nan[..., None])


def _removable(group: Group, pair: Pair, AA: Tensor, BB: Tensor, imbalance: Tensor, values: Tensor) -> Tensor:
    if not group.rotary:
        # GL(D) reaches 0 wherever the product has full rank: the limit is that of `balance`.
        D = group.size
        full = values[..., -1] > D * torch.finfo(values.dtype).eps * values[..., 0]
        if values.shape[-1] < D:
            full = torch.zeros_like(full)
        share = full.to(imbalance.dtype)
    else:
        step, exists = balance(group, pair)
        AA, BB = step.S @ AA @ step.S.mT, step.S_inverse_T @ BB @ step.S_inverse_T.mT
        left = torch.linalg.matrix_norm(AA - BB) / (torch.linalg.matrix_norm(AA) + torch.linalg.matrix_norm(BB))
        share = torch.where(exists, 1 - left / imbalance, 0)
    return torch.where(imbalance > 0, share, torch.nan)


def standing_out(rows: Sequence[Row], most: int = 10) -> list[tuple[Row, float]]:
    """The pairs whose imbalance lies furthest from the median of their circuit, with robust scores, worst first."""
    found = []
    for circuit in dict.fromkeys(row.circuit for row in rows):
        own = [row for row in rows if row.circuit == circuit and math.isfinite(row.imbalance)]
        if len(own) < 3:
            continue
        middle = median(row.imbalance for row in own)
        spread = median(abs(row.imbalance - middle) for row in own)
        for row in own:
            score = 0.6745 * (row.imbalance - middle) / spread if spread else 0.0
            if abs(score) > OUTLIER and abs(row.imbalance - middle) > LEAST:
                found.append((row, score))
    return sorted(found, key=lambda one: -abs(one[1]))[:most]


def _where(row: Row) -> dict[str, Any]:
    return {"circuit": row.circuit, "part": row.part, "layer": row.layer, "group": row.group}


def _moves(found: Pairs) -> dict[str, str]:
    moves: dict[str, list[str]] = {}
    for pairs in found.located:
        moves.setdefault(pairs.family.circuit, []).append(str(pairs.family.group))
    return {circuit: ", ".join(dict.fromkeys(groups)) for circuit, groups in moves.items()}
