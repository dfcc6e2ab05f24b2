"""What `ident train` and `ident sweep` take alike."""

import os
from pathlib import Path
from typing import Annotated

import typer

from identcli.architecture.errors import UserError


def complete(incomplete: str) -> list[str]:
    """Offers for the override at the cursor."""
    from identcli.config.completion import offers

    before = _before_the_cursor(incomplete)
    return [word.removeprefix(before) for word in offers(before + ("" if incomplete == "=" else incomplete))]


def _before_the_cursor(word: str) -> str:
    """`optimizer=`, where bash, for which `=` parts words, says that `sg` is being typed; it wants the rest alone."""
    if "COMP_WORDS" not in os.environ:
        return ""
    words = os.environ["COMP_WORDS"].split()[: int(os.environ["COMP_CWORD"]) + (word == "=")]
    return "".join(words[-2:]) if words[-1:] == ["="] else ""


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        help="key=value in Hydra's grammar: lr=0.1, model.n_layer=2, case=sgd",
        autocompletion=complete,
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", "-cd", help="Folder of YAML files of your own, which win over ident's.")
]
Cfg = Annotated[str | None, typer.Option("--cfg", "-c", metavar="job|hydra|all", help="Show the config, run nothing.")]
Package = Annotated[str | None, typer.Option("--package", "-p", help="With --cfg: only this part, as optimizer.")]
Resolve = Annotated[bool, typer.Option("--resolve", help="With --cfg: interpolations replaced by their values.")]
Info = Annotated[
    str | None,
    typer.Option(
        "--info", "-i", metavar="WHAT", help="Show how: all, config, defaults, defaults-tree, plugins or searchpath."
    ),
]

_CHOICES: dict[str, tuple[str, ...]] = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}


def shown(
    words: list[str],
    config_dir: Path | None,
    cfg: str | None,
    package: str | None,
    resolve: bool,
    info: str | None,
    *,
    sweep: bool,
) -> bool:
    """Whether the flags ask only to show something; then it has been shown."""
    flags = []
    for flag, value in (("--cfg", cfg), ("--info", info)):
        if value is not None:
            if value not in _CHOICES[flag]:
                raise UserError(f"{flag} {value}: must be one of {', '.join(_CHOICES[flag])}")
            flags += [flag, value]
    if not flags:
        if package is not None or resolve:
            raise UserError("--package and --resolve go with --cfg")
        return False
    if len(flags) > 2:
        raise UserError("--cfg and --info: choose one")
    flags += ["--package", package] if package is not None else []
    flags += ["--resolve"] if resolve else []

    from identcli.config import launch
    from identcli.config.preflight import to_show

    launch.show(flags, to_show(words, config_dir, sweep=sweep, package=package), config_dir)
    return True


def command_line(command: str, words: list[str], config_dir: Path | None) -> list[str]:
    """The command, for the record of the run."""
    return ["ident", command, *words, *(["--config-dir", str(config_dir)] if config_dir else [])]
