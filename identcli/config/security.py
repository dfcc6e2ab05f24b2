"""A config chooses by name; it never says which code to run.

Hydra calls what a config names in `_target_` (callbacks, launchers, sweepers), in `()` (factories of logging) and in
`class` (handlers of logging), even in an app that instantiates nothing itself. A YAML file from elsewhere could so run
anything. Before Hydra sees a config, all of these are looked at and only installed launchers and sweepers pass.
Settings that are shell commands, or choose which programs run, count only when they are typed.
"""

import os
import re
from collections.abc import Collection, Iterator
from typing import Any

# place -> the names that may stand there. `hydra_plugins` holds only installed packages of plugins.
_ALLOWED = (
    (r"hydra\.(launcher|sweeper)\._target_", r"(hydra_plugins|hydra\._internal\.core_plugins)\.[\w.]+"),
    (r"hydra\.sweeper\.sampler\._target_", r"optuna\.samplers\.\w+"),
    (r"hydra\.(job_logging|hydra_logging)\.handlers\.\w+\.class", r"logging\.(StreamHandler|NullHandler)"),
    (r"hydra\.(job_logging|hydra_logging)\.handlers\.\w+\.class", r"logging\.FileHandler"),
)
# Settings of launchers and jobs that run what they hold, or decide what is run: only for who types them.
_RUNS = re.compile(
    r"hydra\.(launcher\.(setup|teardown|python|srun_args|additional_parameters|ray_cluster"
    r"|ray\.(init|remote)\.(address|runtime_env|_system_config|job_config))|job\.env_set)(\..+)?"
)
# Interpolations that turn text into parts of a config, in which a _target_ could hide.
_MAKES_PARTS = re.compile(r"\$\{\s*oc\.(create|decode|deprecated)\b")


def refused(config: Any, typed: Collection[str] = ()) -> list[str]:
    """One line for each thing in a plain, unresolved config that names code to call. `typed`: keys given by hand."""
    return [
        f"{where}: refused, for a config may not name code to call ({text})"
        for where, text in _found(_without_copies(config), "")
        if not (_RUNS.fullmatch(where) and any(where == key or where.startswith(f"{key}.") for key in typed))
    ]


def refused_lines(launcher: Any, place: str = "hydra.launcher") -> list[str]:
    """One line for each text of several lines among a launcher's resolved settings.

    They go into a batch script as comments, which end where the line ends: what follows would be run.
    """
    if isinstance(launcher, dict):
        parts = [(value, f"{place}.{key}") for key, value in launcher.items()]
        return [line for value, where in parts for line in refused_lines(value, where)]
    if isinstance(launcher, list):
        return [line for index, value in enumerate(launcher) for line in refused_lines(value, f"{place}[{index}]")]
    if isinstance(launcher, str) and not launcher.isprintable():
        return [f"{place}: refused, for it must be one line of plain text ({launcher!r})"]
    return []


def _without_copies(config: Any) -> Any:
    """Without the variables that Hydra has copied from this process's environment, as `hydra.job.env_copy` asks."""
    job = config.get("hydra", {}).get("job", {}) if isinstance(config, dict) else {}
    if not job.get("env_copy"):
        return config
    copied = {name: os.environ.get(name) for name in job["env_copy"]}
    kept = {name: value for name, value in job["env_set"].items() if name not in copied or copied[name] != value}
    return config | {"hydra": config["hydra"] | {"job": job | {"env_set": kept}}}


def _found(node: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            where = f"{place}.{key}" if place else str(key)
            if (_names_code(key, where) and value is not None and not _allowed(where, value)) or (
                value and not isinstance(value, dict) and _RUNS.fullmatch(where)
            ):
                yield where, str(value)
            else:
                yield from _found(value, where)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _found(value, f"{place}[{index}]")
    elif isinstance(node, str) and (_MAKES_PARTS.search(node) or _reaches_out(node, place)):
        yield place, node


def _names_code(key: object, where: str) -> bool:
    return key in ("_target_", "()") or (key == "class" and "_logging." in where)


def _allowed(where: str, value: object) -> bool:
    return any(re.fullmatch(place, where) and re.fullmatch(name, str(value)) for place, name in _ALLOWED)


def _reaches_out(text: str, place: str) -> bool:
    """logging imports what stands after ext://"""
    return "_logging." in place and "://" in text and not re.fullmatch(r"ext://sys\.std(out|err)", text)
