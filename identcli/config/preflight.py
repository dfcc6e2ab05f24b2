"""One look at the whole command before anything is written: grammar, keys, choices, values, security, points."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from identcli.architecture.errors import UserError
from identcli.config import overrides, points, security
from identcli.config.errors import ConfigErrors
from identcli.config.folders import conf_dir
from identcli.config.plugins import register
from identcli.config.schema import RunConfig, parse
from identcli.store.record import config_hash

VERSION_BASE = "1.3"
_POINTS = "hydra_plugins.ident.PointSweeper"


@dataclass(frozen=True)
class Single:
    """A checked `ident train`: what Hydra is given, the resolved config, and the folder if the user chose it."""

    words: list[str]
    config: RunConfig
    folder: Path | None


@dataclass(frozen=True)
class Many:
    """A checked `ident sweep`. `points` is empty when a sweeper that searches (optuna) chooses them as it goes."""

    words: list[str]
    points: list[points.Point]
    name: str | None
    folder: Path | None


def single(words: Sequence[str], user_folder: Path | None = None) -> Single:
    """Check the overrides of one run. ConfigErrors with all that is wrong."""
    with _hydra(user_folder) as loader:
        typed = overrides.read(words, loader)
        typed.errors += [overrides.several_values(override) for override in typed.swept.values()]
        given = list(typed.fixed.values())
        try:
            composed = _composed(given)
            config = parse(plain(composed))
        except ConfigErrors as wrong:
            raise typed.with_more(wrong.messages) from None
        if not typed.errors and (composed.hydra.sweeper.get("params") or composed.hydra.sweeper.get("points")):
            chosen = typed.value("experiment")
            typed.errors.append(f"experiment={chosen}: many runs: use ident sweep experiment={chosen}")
        if typed.errors:
            raise ConfigErrors(typed.errors)
        return Single(given, config, _folder(typed, "hydra.run.dir"))


def many(words: Sequence[str], user_folder: Path | None = None) -> Many:
    """Check the overrides of a sweep and work out its points. ConfigErrors with all that is wrong."""
    with _hydra(user_folder) as loader:
        typed = overrides.read(words, loader)
        for key in ("name", "experiment"):
            if key in typed.swept:
                typed.errors.append(f"{typed.swept.pop(key).input_line}: can't be swept, a sweep has one {key}")
        if "processes" in typed.swept:
            line = typed.swept.pop("processes").input_line
            typed.errors.append(f"{line}: can't be swept, for it changes no result")
        for key in [key for key in typed.swept if key.startswith(("hydra.", "hydra/"))]:
            typed.errors.append(overrides.one_launcher(typed.swept.pop(key)))
        given = list(typed.fixed.values())
        try:
            composed = _composed(given)
            typed.errors += _uneven(composed)
            sweeper: Any = OmegaConf.to_container(composed.hydra.sweeper)
            ours = sweeper["_target_"] == _POINTS
            found = _points(typed, sweeper, loader) if ours else _each_value_once(typed)
        except ConfigErrors as wrong:
            raise typed.with_more(wrong.messages) from None
        if typed.errors:
            raise ConfigErrors(typed.errors)
        folder, name = _folder(typed, "hydra.sweep.dir"), typed.value("name")
        if ours:
            return Many(given, found, name, folder)
        return Many([*given, *(str(override.input_line) for override in typed.swept.values())], [], name, folder)


def to_show(
    words: Sequence[str], user_folder: Path | None = None, *, sweep: bool = False, package: str | None = None
) -> list[str]:
    """The overrides of a config that shall only be shown (`--cfg`). What a sweep varies is left out.

    Values are not checked: one may want to look at a config to see what is wrong with it.
    """
    with _hydra(user_folder) as loader:
        typed = overrides.read(words, loader)
        if not sweep:
            typed.errors += [overrides.several_values(override) for override in typed.swept.values()]
        given = list(typed.fixed.values())
        try:
            composed = _composed(given)
        except ConfigErrors as wrong:
            raise typed.with_more(wrong.messages) from None
        if package not in (None, "_global_") and OmegaConf.select(composed, str(package)) is None:
            typed.errors.append(f"--package {package}: no such part of the config")
        if typed.errors:
            raise ConfigErrors(typed.errors)
        return [overrides.forced(word) for word in given]


def changes(words: Sequence[str]) -> dict[str, Any]:
    """The single keys and values that a resumed run is to change. ConfigErrors for anything else."""
    with _hydra(None) as loader:
        typed = overrides.read(words, loader)
        typed.errors += [overrides.several_values(override) for override in typed.swept.values()]
        wanted: dict[str, Any] = {}
        for key, word in typed.fixed.items():
            if word.startswith("~") or "hydra" in key or loader.get_group_options(key):
                typed.errors.append(f"{word}: a run is resumed with the choices it began with; single keys may change")
            wanted[key] = overrides.parse(word).value()
        if typed.errors:
            raise ConfigErrors(typed.errors)
        return wanted


def again(recorded: Sequence[str], words: Sequence[str], user_folder: Path | None = None) -> list[str]:
    """What Hydra is given when a sweep is resumed: what was typed when it began, and `words`, which only launch it.

    Another launcher begins with its own settings: those that were typed for the one before are left out. ConfigErrors
    for a word that would change what a point is, and for recorded ones that can't be composed any more.
    """
    with _hydra(user_folder) as loader:
        before, now = overrides.read(recorded, loader), overrides.read(words, loader)
        refused = {key: why for key in now.keys if (why := overrides.not_when_resuming(key))}
        now.errors += [f"{key}: {why}" for key, why in refused.items()]
        now.errors += [overrides.one_launcher(override) for override in now.swept.values()]
        given = {**before.fixed, **now.fixed}
        if "hydra/launcher" in now.fixed:
            given = {key: word for key, word in given.items() if key in now.fixed or not overrides.of_launcher(key)}
        try:
            now.errors += _uneven(_composed(list(given.values()), now.keys))
        except ConfigErrors as wrong:
            more = [message for message in wrong.messages if not message.startswith(tuple(refused))]
            raise now.with_more([*before.errors, *more]) from None
        if now.errors or before.errors:
            raise now.with_more(before.errors)
        return list(given.values())


def _points(typed: overrides.Typed, sweeper: dict[str, Any], loader: ConfigLoader) -> list[points.Point]:
    params = {key: value for key, value in (sweeper["params"] or {}).items() if key not in typed.keys}
    swept, errors = {}, []
    for key, override in {**overrides.swept_words(params, loader), **typed.swept}.items():
        if override.is_interval_sweep():
            errors.append(f"{override.input_line}: only a sweeper that searches can do it: hydra/sweeper=optuna")
        else:
            swept[key] = _values(key, override)
    if errors:
        raise ConfigErrors(errors)
    return _distinct(points.combine(swept, sweeper["points"] or [], typed.keys), list(typed.fixed.values()))


def _each_value_once(typed: overrides.Typed) -> list[points.Point]:
    """For a sweeper that chooses the points itself: each value that can be listed, with all else as it is."""
    listed = [(key, one) for key, one in typed.swept.items() if not one.is_interval_sweep()]
    return _distinct([[word] for key, one in listed for word in _values(key, one)] or [[]], list(typed.fixed.values()))


def _values(key: str, override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _distinct(combinations: list[list[str]], given: list[str]) -> list[points.Point]:
    """The points whose resolved configs differ. ConfigErrors with all that is wrong with any."""
    found: dict[str, points.Point] = {}
    errors: list[str] = []
    composed = cache(lambda *choices: _task_of(_composed([*given, *choices])))
    for chosen in combinations:
        values = {word: override for word in chosen if (override := overrides.single_value(word))}
        try:
            # Composing takes 0.2 s, so points that differ in single values alone share it.
            task = deepcopy(composed(*(word for word in chosen if word not in values)))
            for override in values.values():
                OmegaConf.update(task, override.key_or_group, override.value(), force_add=True)
            config = parse(_plain(task))
        except ConfigErrors as wrong:
            errors += wrong.messages
            continue
        identity = config_hash(config.to_dict())
        found.setdefault(identity, points.Point(points.folder_name(chosen), chosen, config, identity))
    if errors:
        raise ConfigErrors(errors)
    names = points.distinct([point.folder for point in found.values()], list(found))
    return [replace(point, folder=name) for name, point in zip(names, found.values(), strict=True)]


@contextmanager
def _hydra(user_folder: Path | None) -> Iterator[ConfigLoader]:
    if user_folder is not None and not user_folder.is_dir():
        raise UserError(f"--config-dir {user_folder}: no such folder")
    if user_folder is not None and "searchpath" in _hydra_part(user_folder / "config.yaml"):
        raise UserError(f"{user_folder / 'config.yaml'}: hydra.searchpath: refused, for it can import a package")
    register(user_folder)
    with initialize_config_dir(str(conf_dir()), job_name="ident", version_base=VERSION_BASE):
        yield GlobalHydra.instance().config_loader()


def _hydra_part(path: Path) -> dict[str, Any]:
    """What a config.yaml of the user's own says of Hydra, read before Hydra reads it."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    found = content.get("hydra") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def _composed(words: list[str], typed: Collection[str] | None = None) -> DictConfig:
    """Compose, and refuse whatever names code to call. `typed`: the keys that were given by hand, if not all were."""
    by_hand = [points.key_of(word) for word in words] if typed is None else typed
    try:
        config = compose("config", [overrides.forced(word) for word in words], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigErrors([_one_line(error)]) from None
    except yaml.MarkedYAMLError as error:
        place = f"{mark.name}, line {mark.line + 1}" if (mark := error.problem_mark) else "a file"
        raise ConfigErrors([f"{place}: can't be read as YAML: {error.problem}"]) from None
    if wrong := security.refused(OmegaConf.to_container(config, resolve=False), by_hand):
        raise ConfigErrors(wrong)
    if wrong := [*_contrary(config), *_none_at_a_time(config), *security.refused_lines(_launcher(config))]:
        raise ConfigErrors(wrong)
    return config


def _contrary(config: DictConfig) -> Iterator[str]:
    """What Hydra would do and ident doesn't: then a run would not be what, or where, its record says."""
    if config.hydra.mode is not None:
        yield f"hydra.mode={config.hydra.mode.name}: ident train makes one run, ident sweep many"
    if config.hydra.job.chdir:
        yield "hydra.job.chdir=true: a run stays in the folder where it is started, so that data.path is one file"


def _none_at_a_time(config: DictConfig) -> Iterator[str]:
    """What joblib finds out when the sweep's folder is there already."""
    if config.hydra.launcher.get("n_jobs") == 0:
        yield "hydra.launcher.n_jobs=0: must be at least 1, or -1 for as many as there are cores"


def _uneven(config: DictConfig) -> Iterator[str]:
    """Tasks of a cluster's job among which the processes of a run can't be shared out."""
    tasks, processes = 1, config.get("processes")
    for key in ("nodes", "tasks_per_node"):
        value = config.hydra.launcher.get(key)
        tasks *= value if isinstance(value, int) else 1
    if tasks > 1 and isinstance(processes, int) and processes % tasks:
        yield f"processes={processes}: can't be shared out over hydra.launcher.nodes × tasks_per_node = {tasks} tasks"


def _launcher(config: DictConfig) -> dict[str, Any]:
    """The settings of the launcher as it will be given them."""
    try:
        found: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigErrors([f"hydra.launcher: {_one_line(error)}"]) from None
    return found


def plain(composed: DictConfig) -> dict[str, Any]:
    """The config of the run as plain dicts and lists, without Hydra's part and without what is still missing (???)."""
    return _plain(_task_of(composed))


def _task_of(composed: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])


def _plain(task: DictConfig) -> dict[str, Any]:
    try:
        config: Any = OmegaConf.to_container(task, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigErrors([_one_line(error)]) from None
    return {str(key): _without_missing(value) for key, value in config.items()}


def _without_missing(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_missing(value) for key, value in node.items() if value != "???"}
    return node


def _one_line(error: Exception) -> str:
    """Hydra's or OmegaConf's error, with its key before it where it is known."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    if key and isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return f"{key}: no such option"
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, HydraException) and (
        missing := re.search(r"full_key: (\S+)", str(cause))
    ):  # of a YAML file that sets what is not there
        return f"{missing[1]}: no such option ({lines[0].rstrip(':')})"
    return f"{key}: {lines[0]}" if key else lines[0]


def _folder(typed: overrides.Typed, key: str) -> Path | None:
    chosen = typed.value(key)
    return None if chosen is None else Path(chosen)
