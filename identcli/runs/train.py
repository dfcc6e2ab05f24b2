"""One run, from a validated config to a run folder."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from identcli.config.schema import RunConfig
from identcli.runs.follower import Follower
from identcli.runs.interruption import interruption
from identcli.runs.session import Outcome, Prepared, Session, begin, prepare
from identcli.store.lock import locked

__all__ = ["Outcome", "Prepared", "prepare", "run"]

logger = logging.getLogger("ident")


def run(
    config: RunConfig,
    folder: Path,
    command: Sequence[str],
    *,
    live: bool = True,
    prepared: Prepared | None = None,
) -> Outcome:
    """Train as `config` says and record everything in `folder`, which exists already and belongs to this run.

    Whatever happens ends in the folder's status: finished, diverged (not finite; the part before is kept), interrupted
    (Ctrl-C or a polite kill, with a checkpoint; or stop_at) or failed. Only bad input, found before training, is raised
    as a UserError. Under torchrun every process calls this; the first one writes.
    """
    prepared = prepared or prepare(config)
    if not prepared.parallel.leads:
        with interruption() as asked:
            return Follower(config, folder, prepared, bar=False).train(asked)
    with locked(folder), log_to(folder / "run.log"), interruption() as asked:
        begin(config, folder, command, prepared)
        return Session(config, folder, prepared, bar=live).train(asked)


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send everything that is logged to run.log, with the time."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
