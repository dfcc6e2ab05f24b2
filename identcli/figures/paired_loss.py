"""What rebalancing costs, and clearing the optimizer state alone: final validation losses, paired by seed.

Two runs are a pair when they differ in nothing but `rebalance`: with the same seed they see the same batches and are
evaluated on the same ones, so the difference is free of the luck that both share.
"""

from collections.abc import Sequence

import numpy as np

from identcli.figures.data import Run
from identcli.figures.naming import titles


def differences(runs: Sequence[Run]) -> list[str]:
    """A line for each setting of `rebalance` against plain training, and against its control that moves no weights.

    Each gives the mean of the differences and their range over the seeds. Only finished runs count.
    """
    ended = {run: run.evaluations()[1] for run in runs if run.state == "finished"}
    finals = {run: float(losses[-1]) for run, losses in ended.items() if len(losses)}
    one_of_each = {run.identity("seed"): run for run in finals}
    names = dict(zip(one_of_each, titles(list(one_of_each.values())), strict=True))
    # A run that was repeated counts once for its seed.
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run, loss in finals.items():
        for partner, other in finals.items():
            if _is_reference(partner, run):
                pair = names[run.identity("seed")], names[partner.identity("seed")]
                found.setdefault(pair, {}).setdefault(run.config["seed"], []).append(loss - other)
    return [
        _line(first, second, np.array([np.mean(of_seed) for of_seed in values.values()]))
        for (first, second), values in found.items()
    ]


def _is_reference(partner: Run, run: Run) -> bool:
    """Whether `run` is to be held against `partner`: plain training, or the control with the same interval."""
    mine, its = run.config["rebalance"], partner.config["rebalance"]
    control = mine["mode"] == "on" and its["mode"] == "state_only" and mine["every"] == its["every"]
    plain = mine["mode"] != "off" and its["mode"] == "off"
    return (plain or control) and run.identity("rebalance") == partner.identity("rebalance")


def _line(first: str, second: str, values: np.ndarray) -> str:
    line = f"final validation loss of [{first}] minus that of [{second}]: {values.mean():+.4f} nats"
    if len(values) == 1:
        return f"{line} (one seed)"
    return f"{line} (mean of {len(values)} seeds, paired; {values.min():+.4f} … {values.max():+.4f})"
