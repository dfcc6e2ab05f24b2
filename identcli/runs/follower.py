"""The other processes of a data-parallel run: they compute their share and write nothing."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from identcli.collectors import Collector
from identcli.runs.session import Outcome, Session


class Follower(Session):
    """A session that takes part in every step and every move, but measures, says and writes nothing."""

    def _open(self, start: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._draw_other_masks()

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        super().restore(tensors, {**state, "collector": None})
        self._draw_other_masks()

    def _draw_other_masks(self) -> None:
        """Dropout masks of one's own: the leading process's random numbers are the ones that a checkpoint keeps."""
        torch.manual_seed(hash((self.config.seed, self.step, self.parallel.rank)))

    def updated(self, step: int, loss: float, lr: float, grad_norm: float) -> None:
        self.step = step + 1

    def rebalance(self, state: int) -> None:
        self._move()

    def evaluated(self, state: int, losses: dict[str, float]) -> None:
        pass

    def checkpoint(self, state: int) -> None:
        self.saved = state

    def _eval_batches(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        return {}

    def _collector(self) -> Collector | None:
        return None

    def _close(self, outcome: Outcome) -> Outcome:
        return outcome
