"""The built-in models: published architectures, each with the sources of its facts, carried in the package."""

import difflib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from identcli.architecture.description import Architecture
from identcli.architecture.huggingface import from_config


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """All entries as the data file has them: name, hf_id, facts, source, and `config`, the keys of config.json."""
    text = files("identcli.architecture").joinpath("data/architectures.json").read_text(encoding="utf-8")
    return tuple(json.loads(text))


def spellings(entry: dict[str, Any]) -> tuple[str, ...]:
    """What a built-in model answers to: its Hugging Face id, the id's last part, its name."""
    hf_id = entry["hf_id"].split(" ")[0]
    return hf_id, hf_id.split("/")[-1], entry["hf_id"], entry["name"], entry["name"].split(" (")[0]


def find(name: str) -> Architecture | None:
    """The built-in model of this name, in any case; None when there is none."""
    for entry in entries():
        if name.lower() in (s.lower() for s in spellings(entry)):
            return from_config(entry["config"], entry["name"], at=entry["hf_id"])
    return None


def near(name: str) -> list[str]:
    """Built-in names like this one."""
    known = {s.lower(): s for entry in entries() for s in spellings(entry)}
    return [known[s] for s in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)]
