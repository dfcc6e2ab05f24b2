"""The paper's five cases and its four learning rates, nine runs, with their figures: how long on this GPU?

    python -m benchmarks.gpu_paper --device cuda [--side-by-side 5] [--seconds 330] [--out FILE.json] [KEY=VALUE]…

The cases (`experiment=fig2`, one seed) run side by side on the one GPU, a process each, and then the learning rates of
SGD (`experiment=fig4`). Both hold the run at lr 0.25: how far it comes out the same tells how repeatable the GPU is.
After `--seconds` the runs are asked to end, and what is there is drawn.

Evaluation counts. nanoGPT's 200 batches a split, every 250 of 5,000 steps, are 8,400 forward passes: a third of a step
each, so 2,800 steps, more than half of the training itself. 20 batches are 327,680 tokens a split, three times the
whole validation text, and cost a twentieth of the training: they are what is used here. `eval.batches=200` is the rest.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.turns import ident
from identcli.store import metrics, record
from identcli.store.folder import is_run

SECONDS_TO_END = 30.0  # for a checkpoint of each run, once asked

LEAST_SECONDS = 10.0  # a sweep with less isn't begun

RUNS = 9
SWEEPS = {"cases": ["experiment=fig2", "seed=1337"], "learning rates": ["experiment=fig4"]}


def sweep(words: list[str], seconds: float) -> tuple[Path, float]:
    """Run a sweep, or as much of it as `seconds` allow: its folder and how long it took."""
    began = time.monotonic()
    child = subprocess.Popen(ident("sweep", *words), stdout=subprocess.PIPE, text=True)
    try:
        answer, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        try:
            answer, _ = child.communicate(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            child.kill()
            answer, _ = child.communicate()
    if not answer.strip():
        raise RuntimeError(f"ident sweep {' '.join(words)}: exit status {child.returncode}")
    return Path(answer.strip().splitlines()[-1]), time.monotonic() - began


def told(folder: Path) -> dict[str, Any]:
    """How each run fared, which figures there are, and what the paper's statements say of the runs."""
    runs = {}
    for each in sorted(folder.iterdir()):
        if is_run(each):
            status = record.read_status(each)
            runs[each.name] = {key: status.get(key) for key in ("state", "step", "val_loss", "elapsed_s", "error")}
    drawn = subprocess.run(ident("plot", str(folder)), capture_output=True, text=True)
    judged = subprocess.run(ident("verify", "sweep", str(folder), "--json"), capture_output=True, text=True)
    claims: Any = judged.stderr[-500:]
    with contextlib.suppress(json.JSONDecodeError):
        claims = json.loads(judged.stdout)
    return {"folder": str(folder), "runs": runs, "figures": drawn.stdout.split(), "claims": claims}


def repeated(cases: Path, rates: Path) -> float | None:
    """The largest difference between the losses of the run that both sweeps hold; None when one has not finished."""
    losses = [metrics.read(run, "train")["loss"] for run in (cases / "case-sgd", rates / "lr-0.25") if is_run(run)]
    if len(losses) < 2 or len(losses[0]) != len(losses[1]) or not len(losses[0]):
        return None
    return float(np.abs(losses[0] - losses[1]).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--side-by-side", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="overrides for all runs")
    arguments = parser.parse_args()
    common = [f"device={arguments.device}", "threads=1", f"hydra.launcher.n_jobs={arguments.side_by_side}"]
    found: dict[str, Any] = {"words": arguments.words, "side_by_side": arguments.side_by_side, "sweeps": {}}
    folders, left = {}, arguments.seconds
    for name, words in SWEEPS.items():
        if left < LEAST_SECONDS:
            found["sweeps"][name] = {"seconds": 0.0, "failed": "no time was left"}
            continue
        folders[name], seconds = sweep([*words, *common, *arguments.words], max(left, 1.0))
        found["sweeps"][name] = {"seconds": seconds, "folder": str(folders[name])}
        left -= seconds
    for name, folder in folders.items():
        found["sweeps"][name] |= told(folder)
        if arguments.out:  # drawing may take too long
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    found["seconds"] = sum(each["seconds"] for each in found["sweeps"].values())
    found["repeats_to"] = repeated(*folders.values()) if len(folders) == 2 else None
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    states = [run["state"] for each in found["sweeps"].values() for run in each.get("runs", {}).values()]
    return 0 if states == ["finished"] * RUNS else 1


if __name__ == "__main__":
    raise SystemExit(main())
