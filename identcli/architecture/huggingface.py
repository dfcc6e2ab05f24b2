"""Reading a Hugging Face config.json: from its keys to a description, or to one clear line about what is wrong."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from identcli.architecture.assemble import assemble
from identcli.architecture.description import Architecture
from identcli.architecture.errors import UserError
from identcli.architecture.model_types import ALIASES, MODEL_TYPES, SYNONYMS, Derived, Option, Size

# Where models around a text model keep its config.
NESTED = (("text_config",), ("thinker_config", "text_config"), ("llm_config",), ("language_config",))
ALL = "all"


def read_config(path: Path, assume: Collection[str] = ()) -> Architecture:
    """The architecture that a config.json describes. `assume`: keys whose class default may be used, or "all"."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a config: it is no text") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not a config: no JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a config: JSON, but a {type(config).__name__} where an object is needed")
    return from_config(
        config, name=path.parent.name if path.name == "config.json" else path.stem, assume=assume, at=path
    )


def from_config(
    config: Mapping[str, Any], name: str, assume: Collection[str] = (), at: object = "config"
) -> Architecture:
    """The architecture that a config's keys describe. `at` begins every error message."""
    config, model_type, notes = _text_part(config, at)
    if "model_type" not in config and model_type is None:
        shown = ", ".join(list(config)[:4]) or "nothing"
        raise UserError(f"{at}: not a config of a model: no model_type (it has {shown})")
    model_type = str(model_type or config["model_type"])
    kind = ALIASES.get(model_type, model_type)
    if kind not in MODEL_TYPES:
        raise UserError(_unknown(model_type, at))
    reader = _Reader(config, kind, frozenset(assume), at)
    facts = reader.facts()
    try:
        architecture = assemble(name, kind, facts)
    except UserError as error:
        raise UserError(f"{at}: {error}") from None
    noted = (*notes, *reader.notes, *architecture.notes)
    return Architecture(
        name, architecture.stacks, architecture.head, architecture.pooler, architecture.shared_table, noted
    )


def _text_part(config: Mapping[str, Any], at: object) -> tuple[Mapping[str, Any], str | None, list[str]]:
    """The config of the text model, its model_type where only the outer one says it, and what to tell the user."""
    outer = str(config.get("model_type", ""))
    if outer in MODEL_TYPES:
        return config, None, []
    for path in NESTED:
        inner: Any = config
        for key in path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            merged = dict(inner)
            if "tie_word_embeddings" in config:
                merged.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
            note = f"the text model alone is counted: its config is {'.'.join(path)} of {outer or 'the file'}"
            return merged, None if "model_type" in inner else outer, [note]
    return config, None, []


def _unknown(model_type: str, at: object) -> str:
    known = sorted([*MODEL_TYPES, *ALIASES])
    near = difflib.get_close_matches(model_type, known, n=3, cutoff=0.5)
    nearest = f"nearest known: {', '.join(near)}" if near else f"known: {', '.join(known)}"
    how = "if its layers are those of a known one, change model_type; else add an entry to "
    return f"{at}: model_type {model_type!r} is not known; {nearest}; {how}identcli/architecture/model_types.py"


class _Reader:
    """Looks up the facts of one model type in a config, and keeps what it had to take from elsewhere."""

    def __init__(self, config: Mapping[str, Any], kind: str, assume: frozenset[str], at: object) -> None:
        self.config, self.kind, self.assume, self.at = config, kind, assume, at
        self.notes: list[str] = []
        self.missing: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}

    def facts(self) -> dict[str, Any]:
        table = MODEL_TYPES[self.kind]
        found = {fact: self._value(what) for fact, what in table.items() if not isinstance(what, Derived)}
        derived = {fact: what for fact, what in table.items() if isinstance(what, Derived)}
        for fact, what in derived.items():
            found[fact] = self._derived(what, found)
        if self.missing:
            said = ", ".join(f"{key} (class default {value})" for key, value in self.missing.items())
            raise UserError(
                f"{self.at}: model_type {self.kind} leaves out {said}; to count with the class defaults: "
                f"--assume {','.join(self.missing)}"
            )
        unused = sorted(self.assume - set(self.defaults) - {ALL})
        if unused:
            raise UserError(f"{self.at}: --assume {','.join(unused)}: the config has it, or the count doesn't need it")
        if self.defaults:
            said = ", ".join(f"{key} = {value}" for key, value in self.defaults.items())
            self.notes.append(f"assumed class defaults of {self.kind}: {said}")
        found["kv_groups"] = self._kv_groups(found)
        return found

    def _value(self, what: Any) -> Any:
        if isinstance(what, Size):
            given = self._look(what.key)
            if given is None:
                nullable = what.key in self.config and what.key == "q_lora_rank"
                return 0 if nullable else self._default(what.key, what.default)
            return self._checked(what.key, given, what.default)
        if isinstance(what, Option):
            given = self._look(what.key)
            if given is None:
                if what.key not in self.config and what.absent is not None:
                    self.notes.append(f"{what.key} is not in the config: {self.kind} means {_json(what.absent)}")
                return None if what.key in self.config else what.absent
            return given
        return what

    def _look(self, key: str) -> Any:
        """The value under a key or one of its other spellings; null is as good as absent."""
        spellings: Iterable[str] = next((group for group in SYNONYMS if key in group), (key,))
        found = {s: self.config[s] for s in spellings if self.config.get(s) is not None}
        values = list(found.values())
        if any(value != values[0] for value in values[1:]):
            said = " and ".join(f"{s} = {value}" for s, value in found.items())
            raise UserError(f"{self.at}: {said} contradict each other")
        return self.config[key] if found.get(key) is not None else values[0] if values else None

    def _default(self, key: str, value: Any) -> Any:
        if key in self.assume or ALL in self.assume:
            self.defaults[key] = value
        else:
            self.missing[key] = value
        return value

    def _checked(self, key: str, value: Any, like: Any) -> Any:
        """Sizes are whole numbers, switches are yes or no: a text or a half would go unnoticed into the count."""
        if isinstance(like, bool):
            right = isinstance(value, bool)
        elif isinstance(like, float):
            right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        else:
            right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not right:
            kind = {bool: "true or false", float: "a share between 0 and 1"}.get(type(like), "a whole number")
            raise UserError(f"{self.at}: {key} = {_json(value)}: must be {kind}")
        return value

    def _derived(self, what: Derived, found: Mapping[str, Any]) -> Any:
        given = self._look(what.key) if what.key else None
        if given is not None:
            return self._checked(what.key, given, 1)
        spelled = any(s in self.config for group in SYNONYMS if what.key in group for s in group)
        if what.default is not None and not spelled:
            return self._default(what.key, what.default)
        width, heads = found["width"], found["heads"]
        if what.rule == "head size":
            if not heads or width % heads:
                raise UserError(
                    f"{self.at}: width {width} is not a multiple of {heads} heads, and no head_dim says more"
                )
            return width // heads
        return {"heads": None, "4x": 4 * width, "layers": found["layers"]}[what.rule]

    def _kv_groups(self, found: Mapping[str, Any]) -> int:
        """An explicit number beats the multi_query flag; without either there is one per head."""
        given, heads = found.get("kv_groups"), found["heads"]
        if given is not None:
            if self.kind == "falcon" and given == heads and found["multi_query"] and not found["new_decoder"]:
                self.notes.append(f"num_kv_heads = {given} only repeats the heads: multi_query gives 1 kv group")
                return 1
            return int(given)
        return 1 if found.get("multi_query") and not found.get("new_decoder") else int(heads)


def _json(value: Any) -> str:
    return json.dumps(value)
