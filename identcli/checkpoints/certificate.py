"""What shows that a rebalanced checkpoint is the same model: pair by pair, in float64 and as stored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from identcli.architecture.pairs import Circuit
from identcli.checkpoints.unjudged import Skipped
from identcli.store import strictjson


class Moved(NamedTuple):
    """One pair: its imbalance before, after in float64, and after in the file's dtype; the relative change of the
    product BᵀA (with its biases; ‖·‖_F over ‖·‖_F) in float64, and after rounding to the file's dtype. why: why it
    stayed as it was; "" when it moved.
    """

    circuit: Circuit
    part: str
    layer: int
    group: int
    imbalance_before: float
    imbalance_after: float
    imbalance_stored: float
    change: float
    change_stored: float
    why: str


@dataclass(frozen=True)
class Certificate:
    """outputs: how far the outputs of the whole model moved, when that was measured (see `outputs.compare`)."""

    source: str
    written: str
    layout: str
    rows: list[Moved]
    skipped: Sequence[Skipped]
    notes: Sequence[str]
    outputs: Mapping[str, object] | None = None

    def summary(self) -> dict[str, Any]:
        """For each circuit the median and largest imbalance, before and after, and the largest change of a product."""
        circuits: dict[str, Any] = {}
        for circuit in dict.fromkeys(row.circuit for row in self.rows):
            own = [row for row in self.rows if row.circuit == circuit]
            circuits[circuit] = {
                "pairs": len(own),
                "moved": sum(not row.why for row in own),
                **{f"{name}_max": _largest(own, name) for name in Moved._fields[4:9]},
                **{f"{name}_median": _median(own, name) for name in Moved._fields[4:7]},
            }
        return circuits

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "written": self.written,
            "layout": self.layout,
            "circuits": self.summary(),
            "outputs": self.outputs,
            "left_as_they_are": [{"what": one.what, "why": one.why} for one in self.skipped],
            "notes": list(self.notes),
            "pairs": [row._asdict() for row in self.rows],
        }

    def to_json(self) -> str:
        return strictjson.to_text(self.to_dict(), indent=2)


def _finite(rows: Sequence[Moved], name: str) -> list[float]:
    return sorted(value for row in rows if math.isfinite(value := getattr(row, name)))


def _largest(rows: Sequence[Moved], name: str) -> float | None:
    values = _finite(rows, name)
    return values[-1] if values else None


def _median(rows: Sequence[Moved], name: str) -> float | None:
    values = _finite(rows, name)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else None
