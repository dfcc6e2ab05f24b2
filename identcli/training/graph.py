"""The gradient of an update as one CUDA graph: its hundreds of kernels are recorded once and launched together.

Forward, backward and clipping are recorded; the optimizer's step stays outside. Its fused kernels are a few launches
for all tensors, and there a new learning rate each step, the collectors on both sides of it and a rebalancing that
drops optimizer state are what they always are: nothing has to live in fixed memory or be a tensor on the device. Only
the launches of the forward and backward pass cost the host more time than the device takes at small sizes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.training.loop import Batch, Gradient

Run = Callable[[], None]

WARM_UPS = 3  # as torch advises: libraries set themselves up, and torch.compile compiles, before anything is recorded


class Captured:
    """A `Gradient` that records itself when first called and is replayed from then on, with the same result.

    A graph reads and writes fixed memory: micro-batches are copied into it, the answer is copied out of it, and the
    gradients stay where the recording put them, so `.grad` must not be set to None between two calls. Micro-batches
    have the shapes of the first ones. Weights may change in place, never be replaced. Random numbers (dropout) are
    those that the same calls would have drawn without a graph: torch moves its generator on at each replay.
    """

    def __init__(self, gradient: Gradient, record: Callable[[Run], Run] | None = None) -> None:
        self._gradient, self._record = gradient, record or cuda_graph
        self._inputs: list[Tensor] = []
        self._replay: Run | None = None
        self._answer = torch.empty(0)

    def __call__(self, micro_batches: Sequence[Batch]) -> Tensor:
        given = [rows for micro_batch in micro_batches for rows in micro_batch]
        if self._replay is None:
            self._inputs = [rows.clone() for rows in given]
            self._replay = self._record(self._run)
        for fixed, rows in zip(self._inputs, given, strict=True):
            fixed.copy_(rows)
        self._replay()
        return self._answer.clone()

    def _run(self) -> None:
        self._answer = self._gradient(list(zip(self._inputs[::2], self._inputs[1::2], strict=True)))


def cuda_graph(run: Run) -> Run:
    """Record `run` on the current CUDA device. It runs a few times before, and draws no random numbers for good."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.random.fork_rng([torch.cuda.current_device()]):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            run()
    return graph.replay


def require_capturable(device: torch.device, processes: int) -> None:
    """UserError where an update can't be recorded."""
    if device.type != "cuda":
        raise UserError(f"cuda_graph=true: needs device=cuda, and this run is on {device.type}")
    if processes > 1:
        raise UserError(f"cuda_graph=true: a run shared out over {processes} processes can't be recorded")
