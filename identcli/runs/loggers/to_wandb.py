"""Weights & Biases, offline: `wandb sync outputs/run1/wandb/offline-run-…` sends it; WANDB_MODE=online does at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb


def start(folder: Path, config: Mapping[str, Any]) -> "WandB":
    mode = os.environ.get("WANDB_MODE", "offline")
    project = os.environ.get("WANDB_PROJECT", "ident")
    run = wandb.init(project=project, name=folder.name, dir=str(folder), config=dict(config), mode=mode)
    # A step of ours as the axis: theirs must not go back, which a resume does.
    run.define_metric("*", step_metric="step")
    return WandB(run)


class WandB:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()
