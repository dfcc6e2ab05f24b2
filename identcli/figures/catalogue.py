"""Which figures there are, and drawing those that the stored runs can support."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.figures import audit, bias_gradients, data, learning_rates, rebalancing_intervals, style, training_cases
from identcli.figures.picture import Picture, Unsupported, save
from identcli.store import audits

FIGURES: dict[str, Callable[[Sequence[data.Run]], Picture]] = {
    "2": training_cases.draw,
    "3": bias_gradients.draw,
    "4": learning_rates.draw,
    "intervals": rebalancing_intervals.draw,
}


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

    which: names of FIGURES; when empty all that the data support. out: where to, else `figures/` in the first path.
    UserError: no run at a path; an unknown figure; data that don't support one asked for, or any; an unwritable folder.
    """
    of_audits = all(audits.is_audit(path) for path in paths)
    figures: Mapping[str, Callable[[Any], Picture]] = AUDIT_FIGURES if of_audits else FIGURES
    names = [_known(name, figures) for name in which]
    stored = audit.load(paths) if of_audits else data.load(paths)
    folder = out if out is not None else (paths[0].parent if of_audits else paths[0]) / "figures"
    files, notes, missing = [], [], []
    with style.applied():
        for name in names or figures:
            try:
                picture = figures[name](stored)
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
