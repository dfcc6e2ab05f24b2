"""What a shell may offer for a half-typed override: the choices of groups and the values in the YAML files.

From the files alone, without Hydra: an answer must come while one waits for it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from identcli.config.folders import conf_dir

_NOT_OURS = ("defaults", "hydra")


def offers(typed: str, user_folder: Path | None = None) -> list[str]:
    """Whole words `key=value` that begin with what is typed; after a comma, with one more value.

    `opt` → optimizer=adamw, optimizer=sgd, …; `case=sgd,a` → case=sgd,adamw, …; `lr=` → the rates of the YAML files.
    """
    before, comma, last = typed.rpartition(",")
    key = before.partition("=")[0]
    stem = f"{key}={last}" if comma else typed
    words = dict.fromkeys(word for word in _words(user_folder) if word.startswith(stem))
    given = before.partition("=")[2].split(",")
    values = [word.partition("=")[2] for word in words]
    return [f"{before},{value}" for value in values if value not in given] if comma else list(words)


def _words(user_folder: Path | None) -> Iterator[str]:
    for top in (conf_dir(), user_folder):
        if top is None or not top.is_dir():
            continue
        files = sorted(path for path in top.rglob("*.yaml") if path.parent.name[:1] != ".")
        for path in files:
            group = path.parent.relative_to(top).as_posix()
            if group != ".":
                yield f"{group}={path.stem}"
        for path in files:
            group = path.parent.relative_to(top).as_posix()
            text = path.read_text(encoding="utf-8")
            content = yaml.safe_load(text)
            if isinstance(content, dict) and not group.startswith("hydra"):
                prefix = "" if group == "." or "@package _global_" in text else f"{group}."
                yield from _leaves(content, prefix)


def _leaves(node: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in node.items():
        if not prefix and key in _NOT_OURS:
            continue
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield from (f"{prefix}{key}={choice}" for choice in ("true", "false"))
        elif value != "???":
            yield f"{prefix}{key}={_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
