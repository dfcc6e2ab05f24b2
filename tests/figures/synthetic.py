"""Run folders with invented but lifelike numbers, written through the store: the sizes that a demo run shows."""

from pathlib import Path
from typing import Any

import numpy as np

from identcli.store import events, metrics, record

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "sgd": ({"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}, "off"),
    "sgd_decay": ({"name": "sgd", "weight_decay": 4e-4, "momentum": 0.0}, "off"),
    "adamw": ({"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}, "off"),
    "adamw_rebalanced": ({"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}, "on"),
    "adamw_state_only": ({"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}, "state_only"),
}


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


def write(path: Path, settings: dict[str, Any], stop: int | None = None, heads: bool = True, **status: Any) -> Path:
    """A run folder with rows up to `stop` (default: all) for these settings; finished unless `status` differs."""
    path.mkdir(parents=True)
    rng = np.random.default_rng([settings["seed"], int(1e6 * settings["lr"]), settings["rebalance"]["every"]])
    record.write_config(path, settings)
    steps = settings["steps"] if stop is None else stop
    sgd = settings["optimizer"]["name"] == "sgd"
    schedule = _schedule(settings)
    with metrics.MetricWriter(path) as writer:
        loss = 4.18 - (1.75 if sgd else 2.1) * (1 - np.exp(-np.arange(settings["steps"] + 1) / (settings["steps"] / 5)))
        loss += 0.005 * rng.standard_normal()
        for k in range(steps):
            writer.add(
                "train",
                k,
                loss=loss[k] + 0.05 * rng.standard_normal(),
                lr=schedule[k],
                grad_norm=1.0,
                tokens=0,
                elapsed_s=0.0,
            )
        for k in range(0, steps + 1, settings["eval"]["every"]):
            writer.add("eval", k, split="train", loss=loss[k])
            writer.add("eval", k, split="val", loss=loss[k] + 0.03)
        if heads:
            _measure(writer, path, settings, steps, schedule, rng)
    record.write_status(path, **({"state": "finished", "step": steps, "steps": settings["steps"]} | status))
    return path


def _schedule(settings: dict[str, Any]) -> np.ndarray:
    k, warmup, steps = np.arange(settings["steps"]), settings["schedule"]["warmup"], settings["steps"]
    cosine = 0.1 + 0.45 * (1 + np.cos(np.pi * (k - warmup) / max(1, steps - warmup)))
    return settings["lr"] * np.where(k < warmup, (k + 1) / (warmup + 1), cosine)


def _measure(
    writer: metrics.MetricWriter,
    path: Path,
    settings: dict[str, Any],
    steps: int,
    lr: np.ndarray,
    rng: np.random.Generator,
) -> None:
    layers, groups = settings["model"]["n_layer"], settings["model"]["n_head"]
    heads = layers * groups
    layer, head = np.divmod(np.arange(heads), groups)
    sgd, decay = settings["optimizer"]["name"] == "sgd", settings["optimizer"]["weight_decay"]
    mode, every = settings["rebalance"]["mode"], settings["rebalance"]["every"]
    beta = 0.21 + 0.01 * rng.standard_normal(heads)
    tau, mu = 0.05 * rng.standard_normal(heads), 0.6 + 0.05 * rng.standard_normal(heads)
    lean = np.sort(np.abs(rng.standard_normal(heads)))[::-1] * rng.choice([-1, 1], heads)
    for k in range(steps):
        if k and mode != "off" and k % every == 0:
            after = np.zeros(heads) if mode == "on" else beta
            events.append(
                path,
                {"step": k, "event": "rebalance", "mode": mode, "circuit": "qk", "output_change": 1e-7}
                | {
                    "beta_before": beta.reshape(layers, groups).tolist(),
                    "beta_after": after.reshape(layers, groups).tolist(),
                },
            )
            beta, tau = after.copy(), tau * (mode != "on")
        relative = lr[k] / settings["lr"]
        if sgd:
            beta, tau, mu = beta * np.exp(-2 * decay * lr[k]), tau * np.exp(-2 * decay * lr[k]), mu + 1e-5
        else:
            beta = beta + 0.5 * relative * (0.9 - beta) / settings["steps"] * (1 + 0.3 * rng.random(heads))
            tau, mu = (
                tau + 0.7 * lean * relative / settings["steps"],
                mu + relative * (0.5 + layer / layers) / settings["steps"],
            )
        if k % settings["collect"]["every"] and k != steps - 1:
            continue
        norm = (lr[k] * 0.1 if sgd else 0.09 * relative) * np.exp(0.2 * rng.standard_normal(heads))
        floor = 1e-13 / norm**2
        share = (1e-7 if sgd and not decay else 1e-3 if sgd else 0.036) * np.exp(0.7 * rng.standard_normal(heads))
        drift = 2e-6 * (lr[k] / 0.25) ** 3 * np.exp(-0.4 * layer + 0.5 * rng.standard_normal(heads))
        defined = {
            "rho": share + floor,
            "update_norm": norm,
            "beta": beta,
            "tau": tau,
            "mu": mu,
            "drift": drift + 7.9e-9,
        }
        other = dict.fromkeys(("eig_min_a", "eig_min_b", "charge_change"), 0.1)
        rounding = {"rho_floor": floor, "drift_floor": np.full(heads, 7.9e-9)}
        writer.add("heads", k, layer=layer, head=head, circuit="qk", **defined, **rounding, **other)
        query, key = (scale * np.exp(0.5 * rng.standard_normal(layers)) for scale in (2e-3, 1e-9))
        columns = {"query_max": query / 3, "query_norm": query, "key_max": key / 3, "key_norm": key}
        if settings["model"]["bias"]:
            writer.add("biases", k, layer=np.arange(layers), **columns)
