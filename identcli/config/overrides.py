"""What is typed after `ident train`, read before Hydra composes anything: grammar, keys, groups and choices.

Values of text keys (`name`, `data.path`) are put in quotes first, so that they stay as typed: `name=1e5`, `name=007`,
`name=true` are text, and `data.path=out/epoch=9.txt` needs no quoting. Only a plain `null` is null (the text null is
`'name="null"'`), and what is quoted, or several values, is left as it is.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from identcli.config.errors import ConfigErrors
from identcli.config.messages import keys_of, nearest, no_such_option, shown
from identcli.config.schema import RunConfig

_TEXT = re.compile(r"(\+{0,2}(?:name|data\.path)=)(.*)", re.DOTALL)
_SPECIAL = re.compile(r"""$|null$|['"\[{]|.*,|.*\$\{|(choice|range|glob|interval|shuffle|sort)\(""", re.DOTALL)

# Parts of Hydra's config that may hold any key.
_OPEN = re.compile(r"hydra\.(job\.env_set|launcher\.(additional_parameters|ray\.(init|remote)))\.")

# Groups whose choices come from packages of their own.
PACKAGES = {
    ("hydra/launcher", "joblib"): "hydra-joblib-launcher",
    ("hydra/launcher", "ray"): "hydra-ray-launcher",
    ("hydra/launcher", "ray_aws"): "hydra-ray-launcher",
    ("hydra/launcher", "rq"): "hydra-rq-launcher",
    ("hydra/launcher", "submitit_local"): "hydra-submitit-launcher",
    ("hydra/launcher", "submitit_slurm"): "hydra-submitit-launcher",
    ("hydra/sweeper", "optuna"): "hydra-optuna-sweeper",
    ("hydra/sweeper", "ax"): "hydra-ax-sweeper",
    ("hydra/sweeper", "nevergrad"): "hydra-nevergrad-sweeper",
}

# Choices of ours that stand on one of a package.
PRESETS = dict.fromkeys(("slurm", "slurm_gpu", "slurm_nodes"), "submitit_slurm")


def quote(text: str) -> str:
    """`text` in quotes, as one value of Hydra's grammar."""
    return QuotedString(text, Quote.single).with_quotes()


@dataclass
class Typed:
    """The overrides of a command line, checked as far as this is possible without composing."""

    fixed: dict[str, str] = field(default_factory=dict)  # key -> key=value, as Hydra is given it
    swept: dict[str, Override] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # words that are wrong are only here
    wrong: set[str] = field(default_factory=set)  # keys whose value can't be read
    unknown: set[str] = field(default_factory=set)  # groups of which a choice was asked that doesn't exist

    @property
    def keys(self) -> set[str]:
        return {*self.fixed, *self.swept}

    def value(self, key: str) -> str | None:
        """The text that was typed for a key that isn't swept."""
        value = parse(self.fixed[key]).value() if key in self.fixed else None
        return None if value is None else str(value)

    def with_more(self, messages: Iterable[str]) -> ConfigErrors:
        """All errors: those of the words, then those of the config, less those that follow from a wrong word."""
        groups = tuple(f"{group}." for group in self.unknown)
        missing = {f"{key}: is missing" for key in {*self.wrong, *self.swept}}
        return ConfigErrors(
            [*self.errors, *(text for text in messages if not text.startswith(groups) and text not in missing)]
        )


def parse(word: str, loader: ConfigLoader | None = None) -> Override:
    """One override. Hydra's HydraException when it is not in its grammar."""
    return OverridesParser.create(config_loader=loader).parse_overrides([word])[0]


def single_value(word: str) -> Override | None:
    """The override, if all it does is to set one value of the run's config: `lr=0.1`, not `optimizer=sgd` or `~lr`."""
    override = parse(word)
    key, keys = override.key_or_group, keys_of(RunConfig)
    leaf = key in keys and not any(other.startswith(f"{key}.") for other in keys)
    return override if leaf and word.startswith(key) else None


def read(words: Iterable[str], loader: ConfigLoader) -> Typed:
    """Parse the words, with every error of grammar, key, group and choice; a key given twice counts as last given."""
    typed = Typed()
    keys = keys_of(RunConfig)
    groups = [group for group in loader.list_groups("") if group != "hydra"]
    for word in words:
        try:
            override = parse(_text_in_quotes(word), loader)
        except HydraException:
            typed.errors.append(_not_an_override(word))
            typed.wrong.add(word.partition("=")[0].lstrip("+"))
            continue
        if not override.key_or_group:
            typed.errors.append(_not_an_override(word))
            continue
        key = override.key_or_group
        choices = loader.get_group_options(key, ObjectType.CONFIG) if key in groups or "/" in key else []
        typed.fixed.pop(key, None)
        typed.swept.pop(key, None)
        if (choices or "/" in key) and (wrong := _wrong_choices(override, choices)):
            typed.errors += wrong
            typed.unknown.add(key)
        elif not choices and not key.startswith(("hydra.", "hydra/")) and key not in keys:
            typed.errors.append(no_such_option(key, [*keys, *groups], {}))
        elif override.is_sweep_override():
            typed.swept[key] = override
        else:
            typed.fixed[key] = _for_hydra(override, is_group=bool(choices))
    return typed


def _text_in_quotes(word: str) -> str:
    found = _TEXT.fullmatch(word)
    return word if not found or _SPECIAL.match(found[2]) else found[1] + quote(found[2])


def _for_hydra(override: Override, is_group: bool) -> str:
    """The word for Hydra. A `+` makes no difference, for the schema alone decides which keys there are."""
    word = override.input_line or ""
    if _OPEN.match(word):
        return f"++{word}"
    if not word.startswith("+"):
        return word
    return word.lstrip("+") if is_group else "++" + word.lstrip("+")


def forced(word: str) -> str:
    """The word as Hydra composes it even where the config has no such key: the schema answers for that, and better."""
    key = word.partition("=")[0]
    return word if key[:1] in "+~" or key.startswith("hydra.") or "." not in key else f"++{word}"


def _not_an_override(word: str) -> str:
    key, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[+~]*[\w.][\w./@:-]*", key):
        return f"{word}: must be key=value"
    return f"""{word}: can't be read. Text with = , ( [ {{ or a space needs quotes: '{key}="{value}"'"""


def _wrong_choices(override: Override, choices: list[str]) -> list[str]:
    group = override.key_or_group
    if override.is_delete():
        return []
    if override.is_choice_sweep():
        wanted = [text.strip("'\"") for text in override.sweep_string_iterator()]
    else:
        value = override.value()
        wanted = [value if isinstance(value, str) else shown(value)]
    errors = []
    for name in wanted:
        base = PRESETS.get(name, name) if group == "hydra/launcher" else name
        if name in choices and base in choices:
            continue
        name = base
        if (group, name) in PACKAGES:
            errors.append(f"{group}={name} needs a package: pip install {PACKAGES[group, name]}")
        elif not choices:
            errors.append(f"{group}: no such option")
        else:
            errors.append(f"{group}={name}: no such choice.{nearest(name, choices) or f' There is {_or(choices)}'}")
    return errors


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def several_values(override: Override) -> str:
    """What to say of a swept value where only one can be."""
    word = override.input_line or ""
    key, _, value = word.partition("=")
    return f"""{word}: several values: ident sweep runs them all; one text with a comma is '{key}="{value}"'"""


# Hydra's keys that say how a sweep is launched, which a resume may change.
_LAUNCHES = re.compile(
    r"hydra[./](launcher|job_logging|hydra_logging|env|callbacks)\b.*"
    r"|hydra\.(verbose|output_subdir|sweeper\.max_batch_size)|hydra\.job\.(?!num$|id$|config).*"
)
# Why it may not change the others; the first that is found in a key counts.
_WHY_NOT = {
    r"hydra[./]sweeper": "a sweep is resumed with the points it has",
    r"hydra\.sweep\b": "a sweep is resumed in its own folder",
    r"hydra\.run\b": "is for ident train; a sweep is resumed in its own folder",
    r"hydra\.mode": "a sweep is resumed as a sweep",
    r"hydra\.searchpath": "the points of a sweep have been composed, so that no config is looked for",
    r"hydra\.(runtime|overrides|job)\b": "Hydra sets it itself",
    r"hydra[./](help|hydra_help|output)\b": "is about texts that a resume doesn't show",
    r"(?!hydra\b)": "a sweep is resumed with the points it has; only how they are launched may change, hydra.…",
}


def not_when_resuming(key: str) -> str | None:
    """Why a sweep that is resumed may not be given this key; None if it may, or if Hydra has no such key."""
    if _LAUNCHES.fullmatch(key):
        return None
    return next((why for part, why in _WHY_NOT.items() if re.match(part, key)), None)


def of_launcher(key: str) -> bool:
    """Whether the key chooses or sets a launcher."""
    return key.startswith(("hydra/launcher", "hydra.launcher"))


def one_launcher(override: Override) -> str:
    """What to say of several values of a key of Hydra."""
    return f"{override.input_line}: can't be swept, a sweep is launched in one way"


def swept_words(params: Mapping[str, Any], loader: ConfigLoader) -> dict[str, Override]:
    """The swept values that an experiment sets in `hydra.sweeper.params`, by key."""
    return {key: parse(f"{key}={value}", loader) for key, value in params.items()}
