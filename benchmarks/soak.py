"""A sweep that is killed again and again ends as if nothing had happened.

    python -m benchmarks.soak                 # 50 points of 20 steps, 30 kills
    python -m benchmarks.soak --points 10 --kills 5 --seed 3
    python -m benchmarks.soak --launcher joblib

At random instants a kill -9 hits the process of a point, a worker of the launcher, or the launching process itself;
what ends early is resumed with `ident sweep --resume`. At the end every point must be finished, with each row of its
metrics once and the losses of the straight run. Exit 1 otherwise.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from identcli.config.schema import parse
from identcli.runs.listing import rows
from identcli.store import metrics, record

SMALL = ["data=markov", "data.length=2000", "model.n_layer=1", "model.n_head=2", "model.n_embd=16", "steps=20"]
SMALL += ["model.block_size=8", "batch_size=2", "eval.batches=1", "checkpoint.every=5", "threads=1"]
TARGETS = ("point", "point", "point", "worker", "launcher")
HIGHEST_PAUSE_S = 2.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--points", type=int, default=50)
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--launcher", choices=("local", "joblib"), default="local")
    asked = options.parse_args()
    draw, began = random.Random(asked.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        sweep = Path(place) / "outputs/sweep1"
        launches, kills = soak(sweep, asked.points, asked.kills, draw, asked.launcher)
        wrong = check(sweep, asked.points)
    took = time.monotonic() - began
    hits = ", ".join(f"{count} {target}" for target, count in sorted(kills.items()))
    print(f"{asked.points} points, {kills.total()} kills ({hits}), {launches} launches, {took:.0f} s")
    print("\n".join(wrong) or "every point finished, each row once, losses as of the straight run")
    return int(bool(wrong))


def soak(sweep: Path, points: int, kills: int, draw: random.Random, launcher: str) -> tuple[int, Counter[str]]:
    """Launch and resume until all is finished; how often it was launched, and what was killed."""
    words = [*SMALL, f"seed=range(0,{points})", f"hydra/launcher={launcher}", "hydra.launcher.n_jobs=2"]
    done: Counter[str] = Counter()
    launches = 0
    while True:
        command = ["sweep", "--resume", str(sweep)] if launches else ["sweep", *words]
        launches += 1
        process = subprocess.Popen(
            [sys.executable, "-c", "from identcli.cli.app import main; main()", *command],
            cwd=sweep.parents[1],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None:
            if done.total() < kills and (target := kill(sweep, process.pid, draw)):
                done[target] += 1
                print(f"\r{done.total()} kills, {finished(sweep)} of {points} finished", end="", file=sys.stderr)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0, HIGHEST_PAUSE_S))
        if process.returncode == 0 or launches > 2 * kills + 2:
            print(file=sys.stderr)
            return launches, done


def kill(sweep: Path, launcher: int, draw: random.Random) -> str | None:
    """Kill one of what is running; None when it was not there."""
    running = [status for status in statuses(sweep) if status["state"] == "running"]
    if not running:
        return None
    target = draw.choice(TARGETS)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        point = int(draw.choice(running)["pid"])
        parent = int(Path(f"/proc/{point}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == 1:
            return None
        os.kill({"point": point, "worker": parent, "launcher": launcher}[target], signal.SIGKILL)
        return target
    return None


def statuses(sweep: Path) -> list[dict]:
    return [record.read_status(path.parent) for path in sweep.glob("*/status.json")]


def finished(sweep: Path) -> int:
    return sum(status["state"] == "finished" for status in statuses(sweep))


def check(sweep: Path, points: int) -> list[str]:
    """What is wrong with the sweep's result: a line each."""
    from identcli.runs.train import run

    wrong = []
    found = rows(sweep)
    if len(found) != points:
        wrong.append(f"{len(found)} points, not {points}")
    for row in found:
        if row.state != "finished":
            wrong.append(f"{row.folder.name}: {row.state}: {row.error}")
            continue
        straight = sweep / ".straight" / row.folder.name
        straight.mkdir(parents=True)
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            run(parse(record.read_config(row.folder)), straight, [], live=False)
        for table in ("train", "eval", "heads", "biases"):
            one, two = metrics.read(row.folder, table), metrics.read(straight, table)
            differ = [name for name in one.keys() - {"elapsed_s"} if one[name].tobytes() != two[name].tobytes()]
            wrong += [f"{row.folder.name}: {table}.{name} differs from the straight run's" for name in differ]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
