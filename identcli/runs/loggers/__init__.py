"""Metrics shown elsewhere too, by choice: `loggers=[tensorboard]`. What counts is in the run folder all the same.

A logger is a class with two methods, in a file of its own that is imported when it is chosen. Each works offline: it
writes into the run folder unless its own environment variables send it elsewhere.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from identcli.architecture.errors import UserError

logger = logging.getLogger("ident")

# name -> (module to import, package to install)
PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "trackio": ("trackio", "trackio"),
}


class Logger(Protocol):
    """Made with the run's folder and config. Steps may come again after a resume, and not always in order."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def check(names: Sequence[str]) -> None:
    """UserError when the package of a chosen logger isn't installed."""
    for name in names:
        module, package = PACKAGES[name]
        if importlib.util.find_spec(module) is None:
            raise UserError(f"loggers=[{name}] needs a package: pip install {package}")


class Loggers:
    """All chosen loggers. One that fails is warned of once and dropped: it never ends a run."""

    def __init__(self, names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> None:
        self._started: dict[str, Logger] = {}
        for name in names:
            with self._or_dropped(name):
                module = importlib.import_module(f"identcli.runs.loggers.to_{name}")
                self._started[name] = module.start(folder, config)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on what was measured at a step."""
        for name, one in list(self._started.items()):
            with self._or_dropped(name):
                one.log(step, values)

    def close(self) -> None:
        """Let each write what it still holds."""
        for name, one in list(self._started.items()):
            with self._or_dropped(name):
                one.close()

    @contextmanager
    def _or_dropped(self, name: str) -> Iterator[None]:
        try:
            with redirect_stdout(sys.stderr):  # standard output is the command's own
                yield
        except Exception as failure:  # packages of others raise what they like
            self._started.pop(name, None)
            said = f"logger {name} dropped: {type(failure).__name__}: {failure}".splitlines()[0]
            logger.warning(said)
            print(said, file=sys.stderr)
