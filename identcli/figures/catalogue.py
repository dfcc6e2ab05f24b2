"""Which figures there are, and drawing those that the stored runs can support."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.figures import (
    audit,
    bias_gradients,
    data,
    identified_share,
    learning_rates,
    rebalancing_intervals,
    style,
    training_cases,
)
from identcli.figures.picture import Picture, Unsupported, save
from identcli.store import audits

FIGURES: dict[str, Callable[[Sequence[data.Run]], Picture]] = {
    "2": training_cases.draw,
    "3": bias_gradients.draw,
    "4": learning_rates.draw,
    "intervals": rebalancing_intervals.draw,
}

# Drawn from what comes with the package, so without any run; only when asked for.
WITHOUT_RUNS: dict[str, Callable[[], Picture]] = {"1": identified_share.draw}

# Of audits of checkpoints, which are files and no runs.
AUDIT_FIGURES: dict[str, Callable[[Sequence[audit.Judged]], Picture]] = {
    "heads": audit.maps,
    "spectra": audit.spectra,
    "series": audit.series,
}


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and one line for each thing that a reader of the figures should know."""

    files: list[Path]
    notes: list[str]


def draw(paths: Sequence[Path], out: Path | None = None, which: Sequence[str] = ()) -> Drawn:
    """Draw figures of the runs at `paths` (run or sweep folders, folders of these), or of audit files, as PNG and PDF.

    which: names of FIGURES; when empty all that the data support. Those WITHOUT_RUNS need no path. out: where to, else
    `figures/` in the first path, or in outputs/. UserError: no run at a path, or no path; an unknown figure; data that
    don't support one asked for, or any; an unwritable folder.
    """
    of_audits = bool(paths) and all(audits.is_audit(path) for path in paths)
    of_paths: Mapping[str, Callable[[Any], Picture]] = AUDIT_FIGURES if of_audits else FIGURES
    names = [_known(name, [*WITHOUT_RUNS, *of_paths]) for name in which]
    need_runs = not names or any(name in of_paths for name in names)
    if need_runs and not paths:
        raise UserError("which runs? Name a path, or say --latest")
    stored: Any = None
    if need_runs:
        stored = audit.load(paths) if of_audits else data.load(paths)
    first = (paths[0].parent if of_audits else paths[0]) if paths else Path("outputs")
    folder = out if out is not None else first / "figures"
    files, notes, missing = [], [], []
    with style.applied():
        for name in names or of_paths:
            try:
                picture = WITHOUT_RUNS[name]() if name in WITHOUT_RUNS else of_paths[name](stored)
            except Unsupported as reason:
                missing.append(f"{_file(name)}: {reason}")
                if names:
                    raise UserError(missing[-1]) from None
                continue
            files += save(picture.figure, folder, _file(name))
            notes += [f"{_file(name)}: {note}" for note in picture.notes]
    if not files:
        raise UserError(f"nothing to draw: {'; '.join(missing)}")
    return Drawn(files, notes + [f"not drawn: {reason}" for reason in missing])


def _known(name: str, figures: Collection[str]) -> str:
    """The name in FIGURES for what a user may write: 2, fig2, Fig. 2."""
    short = name.lower().removeprefix("fig").strip(" .")
    if short in figures:
        return short
    near = get_close_matches(short, figures, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(f"{name}: no such figure; there are {', '.join(figures)}.{hint}")


def _file(name: str) -> str:
    return f"fig{name}" if name.isdigit() else name
