"""Hydra itself, called as a function: launchers, sweepers and its flags work, and messages and exit codes are ours."""

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig

from identcli.config.folders import conf_dir
from identcli.config.overrides import quote
from identcli.config.plugins import PointSweeper, register
from identcli.config.preflight import VERSION_BASE, plain
from identcli.config.schema import RunConfig, parse

Task = Callable[[Any], Any]


def run(task: Task, words: list[str], folder: Path, user_folder: Path | None) -> None:
    """Run `task` once, on the composed config. What it raises comes through."""
    _call(task, [*words, f"hydra.run.dir={quote(str(folder))}"], user_folder)


def sweep(
    task: Task, words: list[str], folder: Path, user_folder: Path | None, only: Collection[str] | None = None
) -> None:
    """Run `task` for every point of the sweep whose folder this is, or for those in the folders `only`.

    Launchers pickle the task: a function of a module.
    """
    PointSweeper.only = None if only is None else frozenset(only)
    _call(task, ["--multirun", *words, f"hydra.sweep.dir={quote(str(folder))}"], user_folder)


def show(flags: list[str], words: list[str], user_folder: Path | None) -> None:
    """Answer `--cfg`, `--info`, … on standard output, running nothing."""
    _call(_nothing, [*flags, *words], user_folder)


def launched(composed: Any) -> tuple[RunConfig, Path]:
    """Inside a task: its validated config and its folder."""
    return parse(plain(composed)), folder_of_job()


def folder_of_job() -> Path:
    """Inside a task: its folder."""
    return Path(HydraConfig.get().runtime.output_dir)


def _nothing(composed: Any) -> None:
    """The task of a call that only shows something."""


def _call(task: Task, arguments: list[str], user_folder: Path | None) -> None:
    register(user_folder)
    main = hydra.main(config_path=str(conf_dir()), config_name="config", version_base=VERSION_BASE)
    with _command_line(["ident", *arguments]):
        main(task)()


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """Hydra reads its arguments from sys.argv; with HYDRA_FULL_ERROR it raises where it would print and exit."""
    argv, before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = arguments, "1"
    try:
        yield
    finally:
        sys.argv = argv
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before
