"""Batches that are a pure function of (seed, step): nothing is remembered, so a resumed run sees the same ones.

B rows a batch, T = block_size positions. The starts of the rows come from Philox, a generator that counts: its key is
(seed, stream), its counter holds the step. Its integers, and what is made of them here, are the same on every machine.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from identcli.architecture.errors import UserError

Split = Literal["train", "val"]

TRAINING_STREAM = 0
EVALUATION_STREAMS = {"train": 1, "val": 2}
EVALUATION_SEED = 0


def require_windows(tokens: Mapping[str, Tensor], block_size: int) -> None:
    """Raise UserError unless each part holds one window of block_size tokens and the token after it."""
    for split, part in tokens.items():
        if len(part) <= block_size:
            raise UserError(
                f"the {split} part of the data has {len(part)} tokens: too short for model.block_size={block_size}, "
                f"which needs at least {block_size + 1} tokens"
            )


class Batches:
    """Windows x (B, T) of the tokens and y (B, T), the same windows one token later, on `device`.

    The tokens lie on the device, and a batch is gathered there; only the B starts travel, without waiting.
    """

    def __init__(
        self,
        tokens: Mapping[str, Tensor],
        block_size: int,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: must be at least 1")
        if not 0 <= seed < 2**64:
            raise UserError(f"seed={seed}: must be from 0 to 2**64 - 1")
        require_windows(tokens, block_size)
        self.block_size, self.batch_size, self.seed = block_size, batch_size, seed
        self.device = torch.device(device)
        self._tokens = {split: part.to(self.device) for split, part in tokens.items()}
        positions = torch.arange(block_size, device=self.device)
        self._window = torch.stack([positions, positions + 1])[:, None, :]  # (x or y, 1, T)

    def batch(self, step: int, micro: int = 0) -> tuple[Tensor, Tensor]:
        """The training batch of an update, and of the micro-batch in it: a function of (seed, step, micro)."""
        starts = draw_starts(self._starts_in("train"), self.batch_size, (self.seed, TRAINING_STREAM), step, micro)
        return self._gather("train", starts)

    def eval_batches(self, split: Split, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The first `count` batches of one fixed list of windows a split, drawn with replacement.

        The list depends neither on the step nor on the run's seed: losses of different steps and runs are taken on the
        same windows and can be paired. Row r is the same window for every batch size.
        """
        key = (EVALUATION_SEED, EVALUATION_STREAMS[split])
        starts = draw_starts(self._starts_in(split), count * self.batch_size, key)
        for rows in starts.split(self.batch_size):
            yield self._gather(split, rows)

    def _starts_in(self, split: str) -> int:
        """How many windows a part has: starts from 0 to N − T − 1."""
        return len(self._tokens[split]) - self.block_size

    def _gather(self, split: str, starts: Tensor) -> tuple[Tensor, Tensor]:
        if self.device.type == "cuda":  # from pinned memory the copy doesn't wait for the device
            starts = starts.pin_memory().to(self.device, non_blocking=True)
        else:
            starts = starts.to(self.device)
        x, y = self._tokens[split][starts[:, None] + self._window]
        return x, y


def draw_starts(choices: int, count: int, key: tuple[int, int], step: int = 0, micro: int = 0) -> Tensor:
    """`count` integers (count,), int64, uniform in [0, choices), fixed by (key, step, micro) alone.

    A start is ⌊u · choices / 2³²⌋ with u the upper 32 bits of a draw; it is uniform up to choices / 2³².
    """
    # The lowest word of the counter moves while drawing, so the two that tell batches apart lie above it.
    counter = np.array([0, micro, step, 0], dtype=np.uint64)
    draws = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter).random_raw(count)
    half = np.uint64(32)
    return torch.from_numpy(((draws >> half) * np.uint64(choices) >> half).astype(np.int64))
