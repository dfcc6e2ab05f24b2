"""What is wrong with a config, in one line: the place as one types it, the value, the rule, the nearest valid word."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel


def nearest(word: str, words: Iterable[str]) -> str:
    """` Did you mean …?` with the word nearest to `word`, or nothing when none is near."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f" Did you mean {found[0]}?" if found else ""


def shown(value: object) -> str:
    """A value as it is written in a config: text in quotes, true, null, [1, 2]."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def keys_of(model: type[BaseModel], before: str = "") -> list[str]:
    """Every key of a config as one types it, `model.n_layer`, whatever the choices of its unions."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(before + name)
        for part in _parts(field.annotation):
            keys += [key for key in keys_of(part, f"{before}{name}.") if key not in keys]
    return keys


def line(error: Mapping[str, Any], model: type[BaseModel], config: Mapping[str, Any]) -> str:
    """One of pydantic's errors about `config` as `lr='abc': must be a valid number`."""
    place, kind = _place(error["loc"], model), error["type"]
    if kind == "extra_forbidden":
        return no_such_option(place, keys_of(model), config)
    if kind == "missing":
        return f"{place}: is missing"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    value = error["input"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = error.get("ctx", {}).get("expected_tags", "text")
        named = value.get("name") if isinstance(value, dict) else value
        return f"{place}.name={shown(named)}: must be one of {tags}"
    rule = re.sub(
        r"^(?:Input|String|List|Tuple) should (be|have) ", lambda found: "must " + found[1] + " ", error["msg"]
    )
    if kind == "string_type":
        rule = "must be text: put it in quotes"
    elif kind in ("model_type", "model_attributes_type"):
        rule = f"must hold keys: {place}.…=…"
    elif kind == "literal_error" and isinstance(value, str):
        rule += "." * bool(near := nearest(value, re.findall(r"'(\w+)'", error["msg"]))) + near
    return f"{place}={shown(value)}: {rule}"


def no_such_option(key: str, keys: Iterable[str], config: Mapping[str, Any]) -> str:
    """`optimzer: no such option. Did you mean optimizer?`, or which choice of `config` has no such key."""
    known, group = list(keys), key.partition(".")[0]
    if key in known and isinstance(config.get(group), Mapping):
        return f"{key}: no such option with {group}.name={config[group].get('name')}"
    # A last part that is right in another place (`n_layer` for `model.n_layer`) is nearer than any spelling.
    elsewhere = [one for one in known if one.rpartition(".")[2] == key.rpartition(".")[2] and one != key]
    hint = f" Did you mean {elsewhere[0]}?" if len(elsewhere) == 1 else nearest(key, known)
    return f"{key}: no such option.{hint}"


def _parts(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for inner in getattr(annotation, "__args__", ()) for part in _parts(inner)]


def _place(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """`rebalance.circuits[0]`, without the tags that pydantic puts in for the choices of a union."""
    known = set(keys_of(model))
    place = ""
    for position, step in enumerate(loc):
        if isinstance(step, int):
            place += f"[{step}]"
        elif not place:
            place = step
        elif f"{place}.{step}" in known or position == len(loc) - 1:
            place += f".{step}"
    return place
