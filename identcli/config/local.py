"""Hydra's launcher `local`: points side by side on this machine, in processes forked off the launching one.

What that has imported by then, torch above all, is there when a point begins; a worker of another launcher imports it
anew, for seconds.
"""

import copy
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

FORKS = sys.platform == "linux"  # elsewhere a fork of what has imported torch is not to be trusted


@dataclass
class Local:
    """`n_jobs`: points at a time; -1: as many as there are cores."""

    _target_: str = "hydra_plugins.ident.LocalLauncher"
    n_jobs: int = -1


class LocalLauncher(Launcher):
    """Each point has a process of its own, and a share of the cores unless OMP_NUM_THREADS is set.

    When one of them is killed the others go on, and then RuntimeError. Where forking is not to be trusted (macOS,
    Windows) joblib's launcher does the work.
    """

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self.launcher: Launcher | None = None  # Hydra's own, for one point at a time; or joblib's, for all of them

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        name, settings = ("basic", {}) if FORKS else ("joblib", {"n_jobs": self.n_jobs})
        config = copy.deepcopy(config)
        with read_write(config.hydra):
            config.hydra.launcher = {**ConfigStore.instance().load(f"hydra/launcher/{name}.yaml").node, **settings}
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        assert self.launcher is not None
        if not FORKS:
            return self.launcher.launch(job_overrides, initial_job_idx)

        import joblib

        at_once = min(joblib.effective_n_jobs(self.n_jobs), len(job_overrides))
        threads = max(1, joblib.cpu_count() // max(1, at_once))
        fork = multiprocessing.get_context("fork")
        waiting = list(enumerate(job_overrides, initial_job_idx))
        running: dict[Any, tuple[int, ForkProcess]] = {}  # by the pipe in which a process says what came of its point
        came: dict[int, JobReturn | BaseException] = {}
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    index, overrides = waiting.pop(0)
                    here, there = fork.Pipe(duplex=False)
                    process = fork.Process(target=self._one, args=(index, overrides, threads, there), daemon=True)
                    process.start()
                    there.close()
                    running[here] = index, process
                for pipe in wait(list(running)):
                    index, process = running[pipe]
                    came[index] = _said(pipe, process)
                    del running[pipe]
        finally:
            for _, process in running.values():
                process.terminate()
        returned = []
        for _, each in sorted(came.items()):
            if isinstance(each, BaseException):
                raise each
            returned.append(each)
        return returned

    def _one(self, index: int, overrides: Sequence[str], threads: int, pipe: Connection) -> None:
        """In the forked process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is answered by the launching process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        assert self.launcher is not None
        try:
            came: JobReturn | BaseException = self.launcher.launch([overrides], index)[0]
        except BaseException as failure:
            came = failure
        with suppress(BrokenPipeError):
            pipe.send(came)


def _said(pipe: Any, process: ForkProcess) -> JobReturn | BaseException:
    with pipe, suppress(EOFError):
        said: JobReturn | BaseException = pipe.recv()
        return said
    process.join()
    status = process.exitcode or 0
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return RuntimeError(f"the process of a point {how}")
