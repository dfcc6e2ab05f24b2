"""What a run is (config.yaml, environment.json), how it fares (status.json), what a sweep is made of (sweep.json)."""

import hashlib
import json
import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from identcli.architecture.errors import UserError
from identcli.store import atomic, strictjson
from identcli.store.environment import describe

STATES = ("running", "finished", "failed", "diverged", "interrupted", "lost")

# Text that some YAML reader takes for a number or a truth value though PyYAML does not: 1e5, 0o17, y.
_AMBIGUOUS = re.compile(
    r"[-+]?(\.?\d[\d_]*\.?\d*([eE][-+]?\d+)?|0o[0-7]+|0x[\da-fA-F]+)|[yYnN]|\.?(nan|inf)", re.IGNORECASE
)


class _Writer(yaml.SafeDumper):
    """Plain data only, each value written so that any YAML reader gives back the same type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        style = "'" if _AMBIGUOUS.fullmatch(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


class _Reader(yaml.SafeLoader):
    """Plain data only; unlike PyYAML's own reader it takes 1e-3 for the number that it is."""


_Writer.add_representer(str, _Writer.represent_text)
_Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write config.yaml: plain dicts, lists, text, numbers, truth values and None, in the given order."""
    text = yaml.dump(config, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=110)
    atomic.write_text(folder / "config.yaml", text)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.yaml, never executing anything. UserError when missing or broken."""
    path = folder / "config.yaml"
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=_Reader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: can't be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: must hold keys and values, not {type(config).__name__}")
    return config


def config_hash(config: dict[str, Any]) -> str:
    """12 hex digits that two configs share exactly when they ask for the same results.

    The first digits of the SHA-256 of the config as canonical JSON, without what changes no result: `name`, `device`,
    `cuda_graph`, `processes`, `stop_at` and `loggers`.
    """
    changes_nothing = ("name", "device", "cuda_graph", "processes", "stop_at", "loggers")
    asked = {key: value for key, value in config.items() if key not in changes_nothing}
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def write_environment(folder: Path, extra: dict[str, Any] | None = None) -> None:
    """Write environment.json: command, time, machine, versions, commit (`environment.describe`); `extra` wins."""
    atomic.write_text(folder / "environment.json", strictjson.to_text(describe() | (extra or {}), indent=2) + "\n")


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of environment.json. UserError when missing or broken."""
    return strictjson.read_object(folder / "environment.json")


def write_status(folder: Path, **fields: Any) -> None:
    """Merge fields into status.json, atomically; one process writes it at a time.

    `updated`, `pid` and `host` are set with every call and `started` with the first, unless given. NaN becomes null.
    ValueError for a `state` that is none of STATES.
    """
    if "state" in fields and fields["state"] not in STATES:
        raise ValueError(f"state {fields['state']!r}: must be one of {', '.join(STATES)}")
    path = folder / "status.json"
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    status = strictjson.read_object(path) if path.exists() else {"started": now}
    status |= {"updated": now, "pid": os.getpid(), "host": socket.gethostname()} | fields
    atomic.write_text(path, strictjson.to_text(status, indent=2) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    """The content of status.json. UserError when missing or broken."""
    return strictjson.read_object(folder / "status.json")


def write_vocabulary(folder: Path, characters: list[str]) -> None:
    """Write vocabulary.json: the characters in the order of their tokens."""
    atomic.write_text(folder / "vocabulary.json", json.dumps(characters, ensure_ascii=False) + "\n")


def write_sweep(folder: Path, sweep: dict[str, Any]) -> None:
    """Write sweep.json, atomically: `points`, each with its `folder`, and whatever else describes the sweep."""
    atomic.write_text(folder / "sweep.json", strictjson.to_text(sweep, indent=2) + "\n")


def read_sweep(folder: Path) -> dict[str, Any]:
    """The content of sweep.json. UserError when missing, broken, or with a point outside the sweep's folder."""
    path = folder / "sweep.json"
    sweep = strictjson.read_object(path)
    points = sweep.get("points")
    if not isinstance(points, list):
        raise UserError(f"{path}: has no list of points")
    for index, point in enumerate(points):
        name = point.get("folder") if isinstance(point, dict) else None
        if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\]", name):
            raise UserError(f"{path}: point {index} names no folder of the sweep: {name!r}")
    return sweep
