"""A run as its folder tells it: the tables that the paper's empirical statements are judged by."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from identcli.config.label import case_of, label
from identcli.store import events, folder, metrics, record

# Settings that don't change what a run measures.
INCIDENTAL = ("name", "device", "threads", "compile", "checkpoint")


class Missing(Exception):
    """What a statement needs and the run doesn't have, in words."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder with its resolved config. Tables are read when asked for; a table that isn't there is Missing."""

    path: Path
    config: Mapping[str, Any]

    @property
    def case(self) -> str:
        """The case of the paper that its settings amount to."""
        return case_of(self.config)

    @property
    def title(self) -> str:
        """Its settings in words."""
        return f"{label(self.config)}, lr {self.config['lr']:g}, seed {self.config['seed']}"

    @property
    def plain_sgd(self) -> bool:
        """Gradient descent without momentum and without rebalancing, with or without decay."""
        return self.case in ("sgd", "sgd_decay")

    @property
    def free_adamw(self) -> bool:
        """AdamW whose weights nothing moves but its updates."""
        return self.case in ("adamw", "adamw_state_only")

    @property
    def isotropic_share(self) -> float:
        """1/(2H): mean of ρ for updates of random direction."""
        return 1 / (2 * int(self.config["model"]["n_head"]))

    @cached_property
    def train(self) -> dict[str, np.ndarray]:
        """step, loss and lr of each update."""
        return self._table("train", ["step", "loss", "lr"])

    @cached_property
    def biases(self) -> dict[str, np.ndarray]:
        """step, query_max, key_max: a row a step, the largest entry over all layers."""
        table = self._table("biases", ["step", "query_max", "key_max"])
        steps = np.unique(table["step"])
        rows = {name: np.array([table[name][table["step"] == s].max() for s in steps]) for name in table}
        return rows | {"step": steps}

    @cached_property
    def heads(self) -> dict[str, np.ndarray]:
        """`step` (S), and each column of the query-key circuit as (S, heads), NaN where undefined."""
        table = self._table("heads", None)
        rows = table["circuit"] == "qk"
        if not rows.any():
            raise Missing("the query-key circuit was not collected")
        steps, step_index = np.unique(table["step"][rows], return_inverse=True)
        place = table["layer"][rows].astype(int) * 2**15 + table["head"][rows]
        places, head_index = np.unique(place, return_inverse=True)
        found: dict[str, np.ndarray] = {"step": steps}
        for name, values in table.items():
            if name not in ("step", "layer", "head", "circuit"):
                found[name] = np.full((len(steps), len(places)), np.nan)
                found[name][step_index, head_index] = values[rows]
        return found

    def _table(self, name: str, columns: list[str] | None) -> dict[str, np.ndarray]:
        table = metrics.read(self.path, name, columns)
        if not len(table["step"]):
            raise Missing(f"metrics/{name} is empty: nothing was collected")
        return table

    @property
    def updates(self) -> int:
        """How many updates the metrics of the heads reach."""
        return int(self.heads["step"][-1]) + 1

    @property
    def long_enough(self) -> bool:
        """Whether it went at least 200 updates and twice its warm-up: before that, little has moved."""
        return self.updates >= max(200, 2 * int(self.config["schedule"]["warmup"]))

    @cached_property
    def rebalancings(self) -> list[dict[str, Any]]:
        """The events of rebalancing the query-key circuit, in order."""
        found = [e for e in events.read(self.path) if e.get("event") == "rebalance" and e.get("circuit") == "qk"]
        if not found:
            raise Missing("no rebalancing happened")
        return found

    @property
    def final_loss(self) -> float:
        """Validation loss after the last update; Missing when the run has not come to its end."""
        table = metrics.read(self.path, "eval", ["step", "split", "loss"])
        last = (table["split"] == "val") & (table["step"] == self.config["steps"])
        if not last.any() or not np.isfinite(table["loss"][last][-1]):
            raise Missing("the run has no validation loss after its last update")
        return float(table["loss"][last][-1])

    def setting(self, *without: str) -> str:
        """All settings that matter, but for the named ones, as text to compare runs by."""
        kept = {key: value for key, value in self.config.items() if key not in (*INCIDENTAL, *without)}
        return json.dumps(kept, sort_keys=True)


def load(path: Path) -> list[Run]:
    """The run at `path`, or all runs of the sweep or folder there. NotARun when there is none."""
    return [Run(one, record.read_config(one)) for one in folder.runs_in(path)]


def load_one(path: Path) -> Run:
    """The run at `path`; NotARun, naming the runs nearby, when it is something else."""
    return Run(folder.one_run(path), record.read_config(path))
