"""Losses of the first 50 updates of each case, kept: no change made for speed may change a number beyond rounding.

After a change that is meant to change the numbers `PYTHONPATH=tests python tests/training/test_golden_losses.py` writes
them anew.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from identcli.runs.train import run
from identcli.store import metrics
from small_run import ADAMW, config

KEPT = Path(__file__).with_name("golden_losses.json")
STEPS = 50
SGD = {"name": "sgd", "momentum": 0.0}
CASES = {
    "sgd": (0.25, SGD | {"weight_decay": 0.0}, "off"),
    "sgd_decay": (0.25, SGD | {"weight_decay": 4e-4}, "off"),
    "adamw": (1e-3, ADAMW, "off"),
    "adamw_rebalanced": (1e-3, ADAMW, "on"),
    "adamw_state_only": (1e-3, ADAMW, "state_only"),
}


def losses(case):
    """Train `case` small, on generated text, one thread."""
    lr, optimizer, mode = CASES[case]
    small = config(
        seed=1337,
        steps=STEPS,
        lr=lr,
        batch_size=12,
        model={"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 32},
        optimizer=optimizer,
        schedule={"warmup": 10},
        rebalance={"mode": mode, "every": 20},
        collect={"mode": "paper", "every": 10, "circuits": ["qk"]},
        eval={"every": STEPS, "batches": 1},
        data={"name": "markov", "states": 60, "length": 20000, "concentration": 0.1, "seed": 0},
    )
    with tempfile.TemporaryDirectory() as folder:
        assert run(small, Path(folder), ["ident", "train"], live=False).state == "finished"
        return metrics.read(Path(folder), "train")["loss"]


@pytest.mark.parametrize("case", CASES)
def test_the_losses_are_those_kept(case):
    kept = np.array(json.loads(KEPT.read_text())[case])
    # Another processor sums in another order: float32 rounding (1e-7 of a loss) grows over 50 updates, by AdamW's
    # first steps most, to some 1e-5.
    assert losses(case) == pytest.approx(kept, rel=1e-4)


def test_another_setting_gives_other_losses():
    """The comparison can fail: cases differ from one another by far more than its tolerance."""
    kept = {case: np.array(values) for case, values in json.loads(KEPT.read_text()).items()}
    assert {len(values) for values in kept.values()} == {STEPS}
    last = {case: values[-1] for case, values in kept.items()}
    # Not among them: rebalanced against state_only. They are the same model up to what AdamW makes of other weights.
    for one, other in (("sgd", "adamw"), ("sgd", "sgd_decay"), ("adamw", "adamw_state_only")):
        assert abs(last[one] / last[other] - 1) > 2e-4, (one, other)


if __name__ == "__main__":
    KEPT.write_text(json.dumps({case: [round(float(x), 7) for x in losses(case)] for case in CASES}, indent=0) + "\n")
    print(f"written: {KEPT.name}")
