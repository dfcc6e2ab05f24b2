"""The config of a run that takes a second: markov data, two layers, two heads; and when two runs are the same."""

import numpy as np
import torch

from identcli.config.schema import parse
from identcli.store import checkpoints, events, metrics

PLAIN = {
    "name": None,
    "seed": 7,
    "steps": 8,
    "stop_at": None,
    "lr": 0.25,
    "batch_size": 4,
    "grad_accum": 1,
    "device": "cpu",
    "dtype": "float32",
    "tf32": False,
    "compile": False,
    "threads": 1,
    "clip": 1.0,
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8, "dropout": 0.0, "bias": True},
    "optimizer": {"name": "sgd", "weight_decay": 4e-4, "momentum": 0.0},
    "schedule": {"warmup": 2, "min_ratio": 0.1},
    "rebalance": {"mode": "off", "every": 3, "target": "weights", "state": "clear", "circuits": ["qk"]},
    "collect": {"mode": "full", "every": 2, "circuits": ["qk", "ov"]},
    "eval": {"every": 4, "batches": 2},
    "checkpoint": {"every": 0},
    "data": {"name": "markov", "states": 7, "length": 2000, "concentration": 0.2, "seed": 0},
}
ADAMW = {"name": "adamw", "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-8}


def config(**changes):
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in PLAIN.items()}
    for key, value in changes.items():
        if isinstance(value, dict) and "name" not in value:
            merged[key] |= value
        else:
            merged[key] = value
    return parse(merged)


def same(straight, split, steps):
    """Bit for bit: every metric but the time, the weights after `steps` updates, and the rebalancings."""
    for table in ("train", "eval", "heads", "biases"):
        one, two = metrics.read(straight, table), metrics.read(split, table)
        for name in one.keys() - {"elapsed_s"}:
            assert np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f"), (table, name)
    one, two = (checkpoints.load_tensors(checkpoints.at(folder, steps)) for folder in (straight, split))
    assert all(torch.equal(one[name], two[name]) for name in one)

    def moves(folder):
        return [event for event in events.read(folder) if event["event"] == "rebalance"]

    assert moves(straight) == moves(split)
