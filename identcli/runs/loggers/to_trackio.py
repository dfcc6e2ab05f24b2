"""trackio: a database in the run folder, unless TRACKIO_DIR names another place. `trackio show` draws it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def start(folder: Path, config: Mapping[str, Any]) -> "Trackio":
    os.environ.setdefault("TRACKIO_DIR", str((folder / "trackio").absolute()))  # read when the package is imported
    import trackio

    return Trackio(trackio, trackio.init(project="ident", name=folder.name, config=dict(config)))


class Trackio:
    def __init__(self, package: Any, run: Any) -> None:
        self._package, self._run = package, run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
