"""A run as the figures see it: what its folder says, with tables as arrays over steps, layers and heads.

Axes: S recorded steps, L layers, G kv groups (heads). A null in a table is NaN here, and so is a row that is missing.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention, Circuit
from identcli.config.label import case_of, label
from identcli.store import events, folder, metrics, record

# Settings that don't change what a run measures, or say only where and under which name it ran.
INCIDENTAL = ("name", "device", "threads", "compile", "checkpoint")


@dataclass(frozen=True)
class Layered:
    """Columns of a table by step: each (S, L) for a table by layer, (S, L, G) for one by layer and head."""

    step: np.ndarray
    columns: dict[str, np.ndarray]

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    @property
    def layers(self) -> int:
        return next(iter(self.columns.values())).shape[1]

    def between(self, first: int, last: int) -> "Layered":
        """The rows with first ≤ step ≤ last."""
        keep = (self.step >= first) & (self.step <= last)
        return Layered(self.step[keep], {name: values[keep] for name, values in self.columns.items()})


@dataclass(frozen=True)
class Rebalancing:
    """One event: before update `step`, with β of each layer and head (L, G) before and after it."""

    step: int
    moves_weights: bool
    before: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder. config is empty when the run never started. Tables are read when asked for."""

    path: Path
    config: dict[str, Any]
    status: dict[str, Any]
    overrides: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its resolved settings in words; of a run that never started, what it was to override."""
        return label(self.config) if self.config else " ".join(self.overrides) or self.path.name

    @property
    def case(self) -> str | None:
        """The case of the paper that its settings amount to, whatever it was called."""
        return case_of(self.config) if self.config else None

    @property
    def plan(self) -> tuple[str, ...]:
        """Its sweep and what it overrides there, but for seed and learning rate."""
        return (str(self.path.parent), *sorted(o for o in self.overrides if not o.startswith(("seed=", "lr="))))

    @property
    def steps(self) -> int:
        """How many updates it was to make; 0 when it never started."""
        return int(self.config.get("steps", 0))

    @property
    def stopped(self) -> int | None:
        """The step at which it broke off; None when it finished, runs on, or never started."""
        return int(self.status.get("step", 0)) if self.state in ("failed", "diverged", "interrupted") else None

    @property
    def state(self) -> str:
        return str(self.status.get("state", "never started"))

    @property
    def trouble(self) -> str | None:
        """Why the run isn't whole, in words; None for a finished one."""
        if self.state in ("finished", "never started"):
            return None if self.state == "finished" else "never started"
        words = f"{self.state} at step {self.status.get('step', 0)}"
        if self.state in ("running", "interrupted"):
            words += f" of {self.steps}"
        reason = shorten(str(self.status.get("error") or ""), 100, placeholder=" …")
        return words + (f": {reason}" if reason else "")

    @property
    def attention(self) -> Attention:
        """The facts of its attention layers."""
        model = self.config["model"]
        heads, size = model["n_head"], model["n_embd"] // model["n_head"]
        biases = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias"), model["bias"])
        return Attention(model["n_layer"], heads, heads, model["n_embd"], size, size, **biases)

    @property
    def settings(self) -> dict[str, Any]:
        """Its config without what decides nothing: where it ran, and how a rebalancing that is off would go."""
        kept = {key: value for key, value in self.config.items() if key not in INCIDENTAL}
        if kept and kept["rebalance"]["mode"] == "off":
            kept["rebalance"] = {"mode": "off"}
        return kept

    def identity(self, *ignored: str) -> str:
        """A text that is equal for two runs exactly when their settings are, but for the ignored top-level keys."""
        kept = {key: value for key, value in self.settings.items() if key not in ignored}
        return json.dumps(kept or [str(self.path)], sort_keys=True, default=str)

    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """(S,) steps and the training loss of the weights before each."""
        if not self._has("train"):
            return np.empty(0), np.empty(0)
        table = metrics.read(self.path, "train", ["step", "loss"])
        return table["step"], _finite(table["loss"])

    def evaluations(self, split: str = "val") -> tuple[np.ndarray, np.ndarray]:
        """(S,) numbers of updates done and the loss on that split; empty when it was never evaluated."""
        if not self._has("eval"):
            return np.empty(0), np.empty(0)
        table = metrics.read(self.path, "eval", ["step", "split", "loss"])
        chosen = table["split"] == split
        return table["step"][chosen], _finite(table["loss"][chosen])

    def heads(self, columns: Sequence[str], circuit: Circuit = "qk") -> Layered | None:
        """The columns of the table `heads` as (S, L, G); None without any row of that circuit."""
        if not self._has("heads"):
            return None
        table = metrics.read(self.path, "heads", ["step", "layer", "head", "circuit", *columns])
        rows = table.pop("circuit") == circuit
        return tidy(table if rows.all() else {name: values[rows] for name, values in table.items()})

    def biases(self, columns: Sequence[str]) -> Layered | None:
        """The columns of the table `biases` as (S, L); None without any row."""
        if not self._has("biases"):
            return None
        return tidy(metrics.read(self.path, "biases", ["step", "layer", *columns]))

    def rebalancings(self, circuit: Circuit = "qk") -> list[Rebalancing]:
        """Its rebalancings of that circuit in order, the control's included, which moves no weights."""
        if not self.path.is_dir():
            return []
        found = [
            Rebalancing(
                int(event["step"]),
                event.get("mode") != "state_only",
                np.array(event["beta_before"], float),
                np.array(event["beta_after"], float),
            )
            for event in events.read(self.path)
            if event.get("event") == "rebalance" and event.get("circuit", circuit) == circuit
        ]
        return sorted(found, key=lambda event: event.step)

    def _has(self, table: str) -> bool:
        return self.path.is_dir() and metrics.has(self.path, table)


def tidy(table: Mapping[str, np.ndarray]) -> Layered | None:
    """Rows sorted by step → arrays over (step, layer) or (step, layer, head); rows that are missing become NaN.

    None for a table without rows.
    """
    if not len(table["step"]):
        return None
    rows = {name: table[name].astype(np.intp) for name in ("step", "layer", "head") if name in table}
    fresh = np.diff(rows["step"], prepend=rows["step"][0] - 1) != 0
    steps = rows["step"][fresh]
    at = [np.cumsum(fresh) - 1, *(rows[name] for name in rows if name != "step")]
    shape = tuple(int(index.max()) + 1 for index in at)
    flat = np.ravel_multi_index(at, shape)
    columns = {}
    for name in table.keys() - rows.keys():
        cells = np.full(np.prod(shape), np.nan, np.float64)
        cells[flat] = _finite(table[name])
        columns[name] = cells.reshape(shape)
    return Layered(steps, columns)


def with_rebalancings(
    step: np.ndarray, beta: np.ndarray, rebalancings: Iterable[Rebalancing]
) -> tuple[np.ndarray, np.ndarray]:
    """β (S, L, G) with two points for each rebalancing, before and after, halfway between its step and the row before.

    The row of step k−1 holds β before a rebalancing at k, the row of k holds it one update after: the event lies
    between the two, and no row tells of it.
    """
    moved = [event for event in rebalancings if event.moves_weights and event.before.shape == beta.shape[1:]]
    if not moved:
        return step.astype(float), beta
    at = np.repeat([event.step - 0.5 for event in moved], 2)
    inserted = np.stack([values for event in moved for values in (event.before, event.after)])
    steps = np.concatenate([step.astype(float), at])
    order = np.argsort(steps, kind="stable")
    return steps[order], np.concatenate([beta, inserted])[order]


def load(paths: Sequence[Path]) -> list[Run]:
    """Every run that lies at the paths, in their order and that of each sweep's points; each only once.

    A sweep's points that never started are among them. UserError for a path without any run.
    """
    if not paths:
        raise UserError("no path given: name the folder of a run or of a sweep, such as outputs/run1")
    found: dict[Path, Run] = {}
    for path in paths:
        for run in _runs_at(path):
            found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _runs_at(path: Path) -> list[Run]:
    """Like store.folder.runs_in, with the points of its sweeps that have no folder yet."""
    runs: dict[Path, Run] = {}
    for started in folder.runs_in(path):
        if started != path and folder.is_sweep(started.parent):
            points = record.read_sweep(started.parent)["points"]
            listed = {started.parent / point["folder"]: tuple(point.get("overrides", ())) for point in points}
        else:
            listed = {started: ()}
        for run, overrides in listed.items():
            if run not in runs:
                runs[run] = _open(run, overrides)
    return list(runs.values())


def _open(path: Path, overrides: tuple[str, ...] = ()) -> Run:
    if not folder.is_run(path):
        return Run(path, {}, {}, overrides)
    run = Run(path, record.read_config(path), record.read_status(path), overrides)
    try:
        run.title, run.case, run.attention, run.config["lr"], run.config["seed"], run.config["steps"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path / 'config.yaml'}: not the config of a run: {error} is missing or of no use") from None
    return run


def _finite(values: np.ndarray) -> np.ndarray:
    """Infinity, which float32 makes of what it can't hold, is no more to be drawn than NaN is."""
    return np.where(np.isfinite(values), values, np.nan)
