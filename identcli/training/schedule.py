"""nanoGPT's learning rate: a linear warm-up, then a cosine."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """lr·(k+1)/(warmup+1) for update k < warmup; then a cosine from lr down to lr·min_ratio at update `steps`."""

    lr: float
    steps: int
    warmup: int = 100
    min_ratio: float = 0.1

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        least = self.lr * self.min_ratio
        if step >= self.steps:
            return least
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return least + (self.lr - least) * 0.5 * (1 + math.cos(math.pi * progress))
