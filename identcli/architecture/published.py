"""Published scores against head count and head size (Bhojanapalli et al. 2020), and what those models identify."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from identcli.architecture.pairs import Attention


@dataclass(frozen=True)
class Published:
    """One trained model: parameters in millions, SQuAD F1 and MNLI accuracy in percent."""

    attention: Attention
    parameters_m: int
    squad_f1: float
    mnli: float

    @property
    def weights(self) -> int:
        """Attention weights of one layer."""
        a = self.attention
        return (a.heads + a.kv_groups) * (a.qk_size + a.v_size) * a.embedding

    @property
    def identified(self) -> int:
        """Identified attention weights of one layer, by the paper's count."""
        pairs = [self.attention.pair("qk"), self.attention.pair("ov")]
        return self.weights - sum(pair.groups * pair.group.dimension for pair in pairs)

    @property
    def share(self) -> float:
        """1 − D/(2E) for C = D."""
        return self.identified / self.weights


@dataclass(frozen=True)
class Series:
    """Models that differ in one thing: `heads`, or `head_size`."""

    title: str
    vary: str
    models: tuple[Published, ...]


@cache
def source() -> Mapping[str, Any]:
    """The data file: who published the numbers, where, and the numbers."""
    text = files("identcli.architecture").joinpath("data/bhojanapalli2020.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def series() -> tuple[Series, ...]:
    """The four series of tables 1-3."""
    found = []
    for entry in source()["series"]:
        models = []
        for row in entry["rows"]:
            heads, size = row["heads"], row["head_size"]
            attention = Attention(1, heads, heads, entry["embedding"], size, size)
            models.append(Published(attention, row["parameters_m"], row["squad_f1"], row["mnli"]))
        found.append(Series(entry["title"], entry["vary"], tuple(models)))
    return tuple(found)
