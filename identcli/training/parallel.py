"""One run in several processes: each takes its rows of every batch, and their gradients are averaged.

`torchrun`, or a fork for each of `places`, starts the processes and tells each its place through the environment. The
weights are the same everywhere and stay so, since every process applies the same averaged gradient.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from identcli.architecture.errors import UserError

T = TypeVar("T")


class Parallel:
    """The place of this process in a data-parallel run: `rank` of `size`. A process alone is rank 0 of 1."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def leads(self) -> bool:
        """Whether this is the one process that measures and writes."""
        return self.rank == 0

    def share(self, rows: Tensor) -> Tensor:
        """This process's part (B/size, …) of a batch (B, …)."""
        return rows if self.size == 1 else rows.chunk(self.size)[self.rank]

    def average(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Average the gradients, in place, and the loss over all processes. RuntimeError when one of them is gone."""
        if self.size == 1:
            return loss
        gradients = [p.grad for p in parameters if p.grad is not None]
        together = torch.cat([loss.reshape(1), *(gradient.flatten() for gradient in gradients)])
        self._sum(together)
        parts = (together / self.size).split([1, *(gradient.numel() for gradient in gradients)])
        for gradient, part in zip(gradients, parts[1:], strict=True):
            gradient.copy_(part.view_as(gradient))
        return parts[0].reshape(())

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process: all get the same answer, so that all stop at the same step."""
        if self.size == 1:
            return flag
        count = torch.tensor([float(flag)], device=device)
        self._sum(count)
        return bool(count.item())

    def agree(self, decide: Callable[[], T]) -> T:
        """What the leading process decides, in every process; a UserError that it meets is raised everywhere."""
        if self.size == 1:
            return decide()
        answer: list[Any] = [None, None]
        if self.leads:
            try:
                answer[0] = decide()
            except UserError as error:
                answer[1] = str(error)
        torch.distributed.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise UserError(answer[1])
        return answer[0]

    def _sum(self, values: Tensor) -> None:
        try:
            torch.distributed.all_reduce(values)
        except RuntimeError as error:
            # gloo says where in its own source it was, and goes on after the first sentence.
            reason = re.sub(r"^\[[^\[\]]*\] *", "", str(error).splitlines()[0]).partition(". ")[0]
            raise RuntimeError(f"another process of this run has ended ({reason})") from None


def told() -> Parallel:
    """The place that this process was told by the environment, before it has joined the others."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return Parallel(int(os.environ["RANK"]), size) if size > 1 else Parallel()


def join(device: torch.device) -> Parallel:
    """Join the processes that were started for this run (nccl on CUDA, gloo elsewhere); alone without any."""
    parallel = told()
    if parallel.size > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return parallel


def places(size: int, task: int = 0, tasks: int = 1, meeting: tuple[str, int] | None = None) -> list[dict[str, str]]:
    """What torchrun would tell each process of this machine, as variables of the environment.

    size: of the run. Its processes are shared out over the `tasks`, of which this is number `task`; `meeting` is the
    host and port that all of them know. Without one they are all here.
    """
    if size == 1:
        return [{}]
    here = size // tasks
    host, port = meeting or ("127.0.0.1", _free_port())
    all_the_same = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [{**all_the_same, "RANK": str(task * here + own), "LOCAL_RANK": str(own)} for own in range(here)]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def local_device(device: torch.device) -> torch.device:
    """The device of this process: each process of a machine takes a CUDA device of its own."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    own = int(os.environ["LOCAL_RANK"])
    if own >= torch.cuda.device_count():
        raise UserError(f"process {own} of this machine has no CUDA device: there are {torch.cuda.device_count()}")
    torch.cuda.set_device(own)
    return torch.device("cuda", own)
