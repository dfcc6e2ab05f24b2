"""TensorBoard: event files in the run folder. `tensorboard --logdir outputs` shows all runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def start(folder: Path, config: Mapping[str, Any]) -> "TensorBoard":
    return TensorBoard(SummaryWriter(str(folder / "tensorboard")))


class TensorBoard:
    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
