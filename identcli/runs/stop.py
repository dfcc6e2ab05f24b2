"""Asking a sweep to stop, wherever its runs are: a file in its folder, which all that run points look at."""

from pathlib import Path

from identcli.store import atomic


def ask(sweep: Path, reason: str) -> None:
    """From now on no point starts, the reason being this; the first reason stays."""
    if reason_of(sweep) is None:
        atomic.write_text(sweep / ".stop", reason)


def reason_of(sweep: Path) -> str | None:
    """Why no point may start; None when all may."""
    try:
        return (sweep / ".stop").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def forget(sweep: Path) -> None:
    """Points may start again."""
    (sweep / ".stop").unlink(missing_ok=True)
