"""Titles that tell runs apart: their settings in words, and of those words only as many as it takes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from identcli.figures.data import Run


def titles(runs: Sequence[Run]) -> list[str]:
    """For each run its label and learning rate; where that leaves two alike, also the settings in which they differ."""
    plain = [f"{run.title}, lr {run.config['lr']:g}" if run.config else run.title for run in runs]
    often = Counter(plain)
    return [
        title
        if often[title] == 1
        else title + _difference(run, [r for r, t in zip(runs, plain, strict=True) if t == title])
        for run, title in zip(runs, plain, strict=True)
    ]


def _difference(run: Run, alike: Sequence[Run]) -> str:
    settings = [dict(_flat(other.settings)) for other in alike]
    mine = dict(_flat(run.settings))
    differing = [key for key in mine if any(other.get(key) != mine[key] for other in settings)]
    # A title speaks for all seeds, unless nothing but the seed is different.
    telling = [key for key in differing if key != "seed"] or differing
    if not telling:
        return f", {run.path.name}"
    return "".join(f", {key}={mine[key]}" for key in telling)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
