"""What ident adds to Hydra at run time: the user's folder before ours, a sweeper for exact points, a launcher."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

from identcli.config.local import Local, LocalLauncher
from identcli.config.overrides import quote
from identcli.store import record


class UserFolderFirst(SearchPathPlugin):
    """Puts `--config-dir` before conf/, so that the user's optimizer/sgd.yaml wins. Hydra's own flag puts it after."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder is not None:
            path = f"file://{self.folder.absolute()}"
            search_path.prepend(provider="--config-dir", path=path, anchor=SearchPathQuery(provider="main"))


class PointSweeper(Sweeper):
    """Launches the points that sweep.json in the sweep's folder lists: all in one batch, or max_batch_size at a time.

    The points are worked out before (`identcli.config.points`), so that each is checked before anything is written.
    `only`, when set, names the folders of those that are to be launched. A job is told its folder and no more: what it
    trains stands in sweep.json, whatever has become of the YAML files since.
    """

    only: ClassVar[frozenset[str] | None] = None

    def __init__(self, max_batch_size: int | None, points: Sequence[Any], params: Any) -> None:
        self.max_batch_size = max_batch_size
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        _no_idle_workers(config, max(1, len(self._wanted(config))))
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        assert self.config is not None
        assert self.launcher is not None
        jobs = [[*arguments, f"hydra.sweep.subdir={quote(folder)}"] for folder in self._wanted(self.config)]
        size = self.max_batch_size or len(jobs) or 1
        return [
            self.launcher.launch(jobs[start : start + size], initial_job_idx=start)
            for start in range(0, len(jobs), size)
        ]

    def _wanted(self, config: DictConfig) -> list[str]:
        listed = [point["folder"] for point in record.read_sweep(Path(config.hydra.sweep.dir))["points"]]
        return [folder for folder in listed if self.only is None or folder in self.only]


def _no_idle_workers(config: DictConfig, jobs: int) -> None:
    """Have joblib start no more workers than there are jobs.

    It starts all of them at once. One that never gets a job would answer a Ctrl-C by itself, and break the others'
    pool; and each costs an interpreter.
    """
    if (n_jobs := config.hydra.launcher.get("n_jobs")) is None:
        return

    import joblib

    with read_write(config.hydra.launcher):
        config.hydra.launcher.n_jobs = min(joblib.effective_n_jobs(n_jobs), jobs)


def _offer() -> None:
    """Let Hydra find both where it looks for them, in a package of plugins, without installing one.

    This happens at import: a launcher's processes unpickle the task, which imports this, before Hydra's plugins.
    """
    import hydra_plugins

    offered = ModuleType("hydra_plugins.ident", "A sweeper and a launcher.")
    for plugin in (PointSweeper, LocalLauncher):
        plugin.__module__ = offered.__name__
        setattr(offered, plugin.__name__, plugin)
    hydra_plugins.ident = sys.modules[offered.__name__] = offered


_offer()

_SWEEPER: dict[str, Any] = {
    "_target_": "hydra_plugins.ident.PointSweeper",
    "max_batch_size": None,  # points that are launched at a time; null: all of them
    "points": [],  # exact points, each a list of overrides
    "params": {},  # swept values by key, as on the command line
}


def register(user_folder: Path | None) -> None:
    """Make all of it known to Hydra, in this process. Doing it again only changes the user's folder."""
    UserFolderFirst.folder = user_folder
    for plugin in (UserFolderFirst, PointSweeper, LocalLauncher):
        Plugins.instance().register(plugin)
    for group, name, node in (("hydra/sweeper", "points", _SWEEPER), ("hydra/launcher", "local", Local)):
        ConfigStore.instance().store(group=group, name=name, node=node, provider="ident")
