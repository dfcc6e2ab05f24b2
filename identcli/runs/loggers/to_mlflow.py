"""MLflow: files in the run folder, unless MLFLOW_TRACKING_URI names a server. `mlflow ui` shows them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient


def start(folder: Path, config: Mapping[str, Any]) -> "MLflow":
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need the large package
    uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlflow").absolute().as_uri()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("ident")
    place = experiment.experiment_id if experiment else client.create_experiment("ident")
    run = client.create_run(place, run_name=folder.name).info.run_id
    for key, value in _flat(config):
        client.log_param(run, key, value)
    return MLflow(client, run)


class MLflow:
    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client, self._run = client, run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _flat(config: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        pairs += _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(before + key, value)]
    return pairs
