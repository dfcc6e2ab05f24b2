"""compile=true: traced once for training and once for evaluation, and everything around a step is as without."""

import os
from functools import partial

import numpy as np
import pytest
import torch

from identcli.models import causal
from identcli.runs.resume import resume
from identcli.runs.train import run
from identcli.store import checkpoints, metrics
from small_run import ADAMW, config, same

SETTINGS = {
    "steps": 8,
    "optimizer": ADAMW,
    "lr": 1e-2,
    "grad_accum": 2,
    "model": {"dropout": 0.0},  # compiled, dropout draws other random numbers
    "collect": {"every": 1},
    "rebalance": {"mode": "on", "every": 3},
    "eval": {"every": 2, "batches": 3},
    "checkpoint": {"every": 4},
}


def go(folder, **changes):
    folder.mkdir()
    return run(config(**SETTINGS, **changes), folder, [], live=False)


def test_a_traced_run_is_the_same_run_and_resumes_as_it(tmp_path, monkeypatch):
    """Traced, then run by torch's own kernels: the numbers must be those of the plain model, bit for bit."""
    from torch._dynamo.testing import CompileCounter

    monkeypatch.setattr(causal, "SHORT", 0)  # what is traced has torch's fused attention at any length
    go(tmp_path / "plain")
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    assert go(tmp_path / "traced", compile=True, stop_at=5).step == 5
    # Training and evaluation; no measurement, rebalancing, last batch or change of mode makes a third.
    assert counter.frame_count == 2
    assert resume(tmp_path / "traced", {}, [], live=False).state == "finished"
    same(tmp_path / "plain", tmp_path / "traced", 8)


@pytest.mark.skipif("IDENT_COMPILE" not in os.environ, reason="minutes of compiling C++: IDENT_COMPILE=1 runs it")
def test_a_compiled_run_trains_as_the_plain_one(tmp_path):
    go(tmp_path / "plain")
    assert go(tmp_path / "compiled", compile=True).state == "finished"
    one, two = (metrics.read(tmp_path / name, "train")["loss"] for name in ("plain", "compiled"))
    # Fused kernels round differently (float32: 1e-7), which AdamW's first steps, of size lr for any gradient, enlarge.
    np.testing.assert_allclose(one, two, rtol=1e-4)
    names = [set(checkpoints.load_tensors(checkpoints.at(tmp_path / name, 8)).keys()) for name in ("plain", "compiled")]
    assert names[0] == names[1]
    assert len(metrics.read(tmp_path / "compiled", "heads")["rho"]) == len(
        metrics.read(tmp_path / "plain", "heads")["rho"]
    )
