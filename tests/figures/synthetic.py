"""Run folders with invented but lifelike numbers, written through the store: the sizes that a demo run shows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from identcli.store import events, metrics, record

ADAMW = {"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}, "off"),
    "sgd_decay": ({"name": "sgd", "weight_decay": 4e-4, "momentum": 0.0}, "off"),
    "adamw": (ADAMW, "off"),
    "adamw_rebalanced": (ADAMW, "on"),
    "adamw_state_only": (ADAMW, "state_only"),
}
Edit = Callable[[str, int, dict[str, Any]], None]


def config(case: str = "sgd", lr: float | None = None, **changes: Any) -> dict[str, Any]:
    """A resolved config. A change is named like `seed` or, with two underscores, like `rebalance__every`."""
    optimizer, mode = CASES[case]
    whole: dict[str, Any] = {
        "name": None,
        "seed": 1337,
        "steps": 100,
        "lr": lr or (0.25 if case.startswith("sgd") else 0.001),
        "batch_size": 12,
        "model": {"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 8, "dropout": 0.0, "bias": True},
        "optimizer": dict(optimizer),
        "schedule": {"warmup": 20, "min_ratio": 0.1},
        "rebalance": {"mode": mode, "every": 30, "target": "weights", "state": "clear", "circuits": ["qk"]},
        "collect": {"mode": "paper", "every": 10, "circuits": ["qk"]},
        "eval": {"every": 25, "batches": 2},
        "data": {"name": "tiny_shakespeare"},
    }
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        (whole[part] if part else whole)[key] = value
    return whole


def write(
    path: Path,
    settings: dict[str, Any],
    stop: int | None = None,
    tables: Sequence[str] = ("train", "eval", "heads", "biases"),
    edit: Edit = lambda table, step, columns: None,
    **status: Any,
) -> Path:
    """A run folder with rows up to `stop` (default: all) in those tables, finished unless `status` says otherwise.

    edit(table, step, columns) may change the columns of a row before it is written.
    """
    path.mkdir(parents=True)
    record.write_config(path, settings)
    steps = settings["steps"] if stop is None else stop
    with metrics.MetricWriter(path) as writer:

        def add(table: str, step: int, **columns: Any) -> None:
            if table in tables:
                edit(table, step, columns)
                writer.add(table, step, **columns)

        rng = np.random.default_rng([settings["seed"], int(1e6 * settings["lr"]), settings["rebalance"]["every"]])
        _train(add, settings, steps, rng)
        _measure(add, path, settings, steps, rng)
    record.write_status(path, **({"state": "finished", "step": steps, "steps": settings["steps"]} | status))
    return path


def write_sweep(path: Path, points: Sequence[tuple[str, dict[str, Any] | None]], **options: Any) -> Path:
    """A sweep of runs with these names and settings; None is a point that never started."""
    for name, settings in points:
        if settings is not None:
            write(path / name, settings, **options)
    listed = [{"folder": name, "overrides": name.split("+"), "hash": ""} for name, _ in points]
    record.write_sweep(path, {"command": [], "points": listed})
    return path


def learning_rate(settings: dict[str, Any]) -> np.ndarray:
    """(steps,) the schedule: linear warm-up, then a cosine."""
    k, warmup, steps = np.arange(settings["steps"]), settings["schedule"]["warmup"], settings["steps"]
    cosine = 0.1 + 0.45 * (1 + np.cos(np.pi * (k - warmup) / max(1, steps - warmup)))
    return settings["lr"] * np.where(k < warmup, (k + 1) / (warmup + 1), cosine)


def _train(add: Callable[..., None], settings: dict[str, Any], steps: int, rng: np.random.Generator) -> None:
    fall = 1.75 if settings["optimizer"]["name"] == "sgd" else 2.1
    loss = 4.18 - fall * (1 - np.exp(-5 * np.linspace(0, 1, settings["steps"] + 1))) + 0.005 * rng.standard_normal()
    other = {"lr": 0.0, "grad_norm": 1.0, "tokens": 0, "elapsed_s": 0.0}
    for k in range(steps):
        add("train", k, loss=loss[k] + 0.05 * rng.standard_normal(), **other)
    for k in range(0, steps + 1, settings["eval"]["every"]):
        add("eval", k, split="train", loss=loss[k])
        add("eval", k, split="val", loss=loss[k] + 0.03)


def _measure(
    add: Callable[..., None], path: Path, settings: dict[str, Any], steps: int, rng: np.random.Generator
) -> None:
    layers, groups = settings["model"]["n_layer"], settings["model"]["n_head"]
    heads = layers * groups
    layer, head = np.divmod(np.arange(heads), groups)
    lr = learning_rate(settings)
    sgd, decay = settings["optimizer"]["name"] == "sgd", settings["optimizer"]["weight_decay"]
    mode, every = settings["rebalance"]["mode"], settings["rebalance"]["every"]
    beta = 0.21 + 0.01 * rng.standard_normal(heads)
    tau, mu = 0.05 * rng.standard_normal(heads), 0.6 + 0.05 * rng.standard_normal(heads)
    lean = np.sort(np.abs(rng.standard_normal(heads)))[::-1] * rng.choice([-1, 1], heads)
    for k in range(steps):
        if k and mode != "off" and k % every == 0:
            after = np.zeros(heads) if mode == "on" else beta
            around = {"beta_before": beta, "beta_after": after}
            nested = {name: values.reshape(layers, groups).tolist() for name, values in around.items()}
            events.append(path, {"step": k, "event": "rebalance", "mode": mode, "circuit": "qk", **nested})
            beta, tau = after.copy(), tau * (mode != "on")
        relative = lr[k] / settings["lr"]
        if sgd:
            beta, tau, mu = beta * np.exp(-2 * decay * lr[k]), tau * np.exp(-2 * decay * lr[k]), mu + 1e-5
        else:
            pace = relative / settings["steps"]
            beta = beta + 0.5 * pace * (0.9 - beta) * (1 + 0.3 * rng.random(heads))
            tau, mu = tau + 0.7 * lean * pace, mu + pace * (0.5 + layer / layers)
        if k % settings["collect"]["every"] and k != steps - 1:
            continue
        norm = (lr[k] * 0.1 if sgd else 0.09 * relative) * np.exp(0.2 * rng.standard_normal(heads))
        floor = (2e-15 if sgd else 3e-16) / norm**2
        share = (1e-7 if sgd and not decay else 1e-3 if sgd else 0.036) * np.exp(0.7 * rng.standard_normal(heads))
        drift = 2e-6 * (lr[k] / 0.25) ** 3 * np.exp(-0.4 * layer + 0.5 * rng.standard_normal(heads))
        defined = {"rho": share + floor, "update_norm": norm, "beta": beta, "tau": tau, "mu": mu}
        rounding = {"rho_floor": floor, "drift_floor": np.full(heads, 7.9e-9)}
        other = {"drift": drift + 7.9e-9, "eig_min_a": 0.1, "eig_min_b": 0.1, "charge_change": 0.1}
        add("heads", k, layer=layer, head=head, circuit="qk", **defined, **rounding, **other)
        query, key = (scale * np.exp(0.5 * rng.standard_normal(layers)) for scale in (2e-3, 1e-9))
        if settings["model"]["bias"]:
            norms = {"query_norm": query, "key_norm": key, "query_max": query / 3, "key_max": key / 3}
            add("biases", k, layer=np.arange(layers), **norms)
