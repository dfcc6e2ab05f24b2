"""Going on with a run where its newest whole checkpoint stands, bit for bit as if it had never stopped."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError
from identcli.config.errors import ConfigErrors
from identcli.config.schema import RunConfig, parse
from identcli.runs.follower import Follower
from identcli.runs.interruption import interruption
from identcli.runs.session import Outcome, Prepared, Session, begin, prepare
from identcli.runs.train import log_to
from identcli.store import atomic, checkpoints, events, metrics, record
from identcli.store.folder import no_links_out, one_run
from identcli.store.lock import locked
from identcli.training.parallel import told

logger = logging.getLogger("ident")

# Keys that a resumed run may change; each change is recorded. All others say what the run is.
MAY_CHANGE = (
    "steps",
    "stop_at",
    "lr",
    "grad_accum",
    "device",
    "dtype",
    "tf32",
    "compile",
    "cuda_graph",
    "threads",
    "processes",
    "clip",
    "model.dropout",
    "optimizer.weight_decay",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.momentum",
    "schedule.warmup",
    "schedule.min_ratio",
    "rebalance.mode",
    "rebalance.every",
    "rebalance.target",
    "rebalance.state",
    "collect.every",
    "eval.every",
    "checkpoint.every",
    "loggers",
)


def resume(
    folder: Path,
    changes: Mapping[str, Any],
    command: Sequence[str],
    *,
    live: bool = True,
) -> Outcome:
    """Train on from the newest whole checkpoint of a run; from step 0 when it has none yet.

    Weights, optimizer, random numbers, the collector's charge at the start and the phase of the rebalancing are those
    of the checkpoint, so on a CPU losses, weights and metric rows are those of a run that never stopped. What was
    written past the checkpoint is dropped. changes: dotted keys to new values; UserError with both values for one that
    would make it another run, when nothing is left to do, and when another process holds the run. Of several processes
    every one calls this, and the first writes.
    """
    no_links_out(one_run(folder))
    with ExitStack() as held:
        if leads := told().leads:
            held.enter_context(locked(folder))
            held.enter_context(log_to(folder / "run.log"))
        asked = held.enter_context(interruption())
        config, changed = apply(parse(record.read_config(folder)), {"stop_at": None, **changes})
        status = record.read_status(folder)
        if status["state"] == "finished" and status["step"] >= config.steps:
            raise UserError(f"{folder}: finished all {status['step']} steps already; steps=… trains on")
        prepared = prepare(config)
        _same_text(folder, prepared)
        found = prepared.parallel.agree(lambda: checkpoints.latest(folder))
        session = (Session if leads else Follower)(config, folder, prepared, bar=live and leads)
        if found.path:
            state = checkpoints.load_state(found.path)
            session.restore(checkpoints.load_tensors(found.path), state)
            if session.step > config.steps:
                raise UserError(f"steps={config.steps}: the checkpoint has made {session.step} already")
        if not leads:
            return session.train(asked)
        _cut(folder, session.step)
        if changed:
            record.write_config(folder, config.to_dict())
        if not (folder / "environment.json").exists():
            begin(config, folder, command, prepared)
        skipped = [f"{path.name}: {reason}" for path, reason in found.skipped]
        for line in skipped:
            logger.warning("checkpoint passed over: %s", line)
            print(f"{folder.name}: checkpoint passed over: {line}", file=sys.stderr)
        events.append(
            folder,
            {"event": "resume", "step": session.step, "command": list(command), "changes": changed, "skipped": skipped},
        )
        return session.train(asked)


def processes(folder: Path, changes: Mapping[str, Any]) -> int:
    """How many processes the run, resumed with the changes, takes."""
    return apply(parse(record.read_config(folder)), changes)[0].processes


def apply(config: RunConfig, changes: Mapping[str, Any]) -> tuple[RunConfig, dict[str, list[Any]]]:
    """The config with the changes, validated, and for each key that differs its [old, new] value.

    ConfigErrors with one line for each key that would make it another run, with both values.
    """
    plain = config.to_dict()
    refused: list[str] = []
    changed: dict[str, list[Any]] = {}
    for key, value in changes.items():
        *parents, last = key.split(".")
        part: Any = plain
        for parent in parents:
            part = part.get(parent) if isinstance(part, dict) else None
        if not isinstance(part, dict) or last not in part:
            raise ConfigErrors([f"{key}: no such option of this run"])
        old, part[last] = part[last], value
        if old == value:
            continue
        if key not in MAY_CHANGE:
            refused.append(f"{key}={value}: the run has {old}, which a resume can't change")
        changed[key] = [old, value]
    if refused:
        raise ConfigErrors(refused)
    return parse(plain), changed


def _same_text(folder: Path, prepared: Prepared) -> None:
    """UserError when the text is not the one that the run began with."""
    path = folder / "environment.json"
    if not path.exists():
        return
    then, now = record.read_environment(folder)["data"]["sha256"], prepared.corpus.facts["sha256"]
    if then != now:
        raise UserError(
            f"{folder}: the text has changed since the run began (SHA-256 {then[:12]}… then, {now[:12]}… now)"
        )


def _cut(folder: Path, step: int) -> None:
    """Drop what will be written again. The evaluation and the rebalancing at `step` belong to the checkpoint."""
    atomic.remove_leftovers(folder)
    metrics.cut(folder, step, ["train", "heads", "biases"])
    metrics.cut(folder, step + 1 if step else 0, ["eval"])
    events.keep(folder, lambda event: event["event"] in ("resume", "checkpoint", "rebalance") and event["step"] <= step)
