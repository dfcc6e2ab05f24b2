"""Everything that needs a GPU, in one run of under ten minutes; `benchmarks/gpu.sh` starts it and says how.

Each part is a process of its own with a time of its own: one that fails or takes too long loses nobody else's results.
They are in one JSON, written anew after each part. The most important come first. The nine runs of the paper go the
way that was fastest just before.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.gpu_speed import MEASURING, WAYS
from benchmarks.turns import RESULTS, Table
from identcli.store import atomic
from identcli.store.environment import describe

SECONDS_IN_ALL = 590.0
SECONDS_TO_END = 10.0
AIM_S = 300.0

PROBE = """
import json, torch
assert torch.cuda.is_available(), f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no CUDA device"
torch.ones(1, device="cuda").item()
print(json.dumps({"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "torch": torch.__version__}))
"""


@dataclass(frozen=True)
class Size:
    """How large everything is, and how long each part may take."""

    agreement: tuple[str, ...]
    speed: tuple[str, ...]
    precisions: tuple[str, ...]
    paper: tuple[str, ...]
    seconds: Mapping[str, float]


SIZES = {
    "paper": Size(
        agreement=("--scale", "cpu", "--steps", "20"),
        speed=("--scale", "paper"),
        precisions=("bfloat16", "tf32", "float32"),
        paper=("scale=paper", "eval.batches=20", "checkpoint.every=5000"),
        seconds={"agreement": 60, "bfloat16": 110, "paper": 320, "tf32": 60, "float32": 60},
    ),
    "small": Size(
        agreement=("--scale", "tiny", "--steps", "5"),
        speed=("--scale", "tiny", "--blocks", "2"),
        precisions=("bfloat16", "float32"),
        paper=(
            *("data=markov", "data.length=20000", "steps=5", "eval.every=5", "eval.batches=1"),
            *("model.n_layer=1", "model.n_embd=32", "model.block_size=16"),
        ),
        seconds={"agreement": 60, "bfloat16": 60, "paper": 120, "tf32": 60, "float32": 60},
    ),
}


def part(name: str, words: Sequence[str], seconds: float, out: Path) -> dict[str, Any]:
    """Run `python -m benchmarks.<name>`; what it wrote, with how it ended in `status`: 0, an exit status, or a text."""
    if seconds < SECONDS_TO_END:
        return {"status": "no time was left"}
    print(f"--- {name} {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--out", str(out)]
    began = time.monotonic()
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    status: int | str
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        status = f"took more than {seconds:.0f} s"
        _end(child)
    except BaseException:
        _end(child)
        raise
    found = json.loads(out.read_text()) if out.exists() else {}
    return found | {"status": status, "part_s": time.monotonic() - began}


def _end(child: "subprocess.Popen[bytes]") -> None:
    """The part and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(SECONDS_TO_END)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def fastest(speed: Mapping[str, Any]) -> list[str]:
    """The overrides of ident's fastest way, by its median block; plain where none was measured."""
    known = {
        way: statistics.median(found["seconds"])
        for way, found in speed.get("ways", {}).items()
        if way in WAYS and found.get("seconds")
    }
    return WAYS[min(known, key=lambda way: known[way])] if known else []


def table(results: Mapping[str, Any]) -> Table:
    rows: list[list[str]] = []
    for optimizer, of in results.get("agreement", {}).get("optimizers", {}).items():
        apart = ", ".join(f"{name} {value:.1g} ({of['cpu'][name]:.1g})" for name, value in of["float32"].items())
        rows.append([f"agreement, {optimizer}: distance from float64 (the CPU's own)", apart, _verdict(of["agrees"])])
    for precision, found in results.get("speed", {}).items():
        rows += _speeds(precision, found)
    for where, seconds in results.get("speed", {}).get("bfloat16", {}).get("measurement_s", {}).items():
        rows.append([f"one measurement of all heads, {where}", f"{seconds * 1e3:.3g} ms", ""])
    paper = results.get("paper", {})
    for name, found in paper.get("sweeps", {}).items():
        states = [run["state"] for run in found.get("runs", {}).values()]
        rows.append([f"the paper's {name}", f"{found['seconds']:.0f} s", f"{states.count('finished')} finished"])
    if "seconds" in paper:
        words = " ".join(paper["words"])
        rows.append([f"the paper's nine runs, {words}", f"{paper['seconds']:.0f} s", f"aim {AIM_S:.0f} s"])
    for name, status in statuses(results).items():
        if status != 0:
            rows.append([name, str(status), "failed"])
    return Table(["what", "figure", ""], rows)


def _verdict(agrees: Mapping[str, bool]) -> str:
    return (
        "agrees" if all(agrees.values()) else f"DISAGREES: {', '.join(n for n, holds in agrees.items() if not holds)}"
    )


def _speeds(precision: str, found: Mapping[str, Any]) -> list[list[str]]:
    rows, peer = [], None
    for way, of in found.get("ways", {}).items():
        if not of.get("seconds"):
            rows.append([f"{precision}, {way}", of.get("failed", "no time was left"), ""])
            continue
        if way.startswith("nanoGPT"):
            peer = of["seconds"]
        median, least = statistics.median(of["seconds"]), min(of["seconds"])
        speed = f"{found['tokens_a_step'] / median:,.0f} tokens/s (best {found['tokens_a_step'] / least:,.0f})"
        pairs = [theirs / ours for theirs, ours in zip(peer or [], of["seconds"], strict=False)]
        rows.append([f"{precision}, {way}", speed, f"{statistics.median(pairs):.2f} × nanoGPT" if pairs else ""])
    return rows


def statuses(results: Mapping[str, Any]) -> dict[str, Any]:
    """How each part ended."""
    parts = {"agreement": results.get("agreement", {}), "paper": results.get("paper", {})}
    parts |= {f"speed in {precision}": found for precision, found in results.get("speed", {}).items()}
    return {name: found.get("status", "not reached") for name, found in parts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="paper", choices=SIZES)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--side-by-side", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="overrides for the paper's nine runs")
    arguments = parser.parse_args()
    device, size = arguments.device, SIZES[arguments.size]
    name = f"gpu-{date.today()}.json" if device == "cuda" else f"gpu-trial-{date.today()}.json"
    out = arguments.out or (RESULTS if device == "cuda" else Path("outputs")) / name
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results: dict[str, Any] = {"date": str(date.today()), "device": device, "size": arguments.size}
    results |= {"machine": describe(), "speed": {}}
    if device == "cuda":
        probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
        if probe.returncode:
            print(f"error: {probe.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            return 2
        results |= json.loads(probe.stdout)

    def seconds(of: str) -> float:
        return min(size.seconds[of], SECONDS_IN_ALL - (time.monotonic() - began))

    with tempfile.TemporaryDirectory() as folder:

        def speed(precision: str) -> None:
            allowed = seconds(precision)
            words = ["--device", device, "--precision", precision, *size.speed, "--seconds", f"{0.8 * allowed:.0f}"]
            words += ["--nanogpt", str(arguments.nanogpt.resolve())] if arguments.nanogpt else []
            results["speed"][precision] = part("gpu_speed", words, allowed, Path(folder) / f"{precision}.json")
            keep()

        def keep() -> None:
            atomic.write_text(out, json.dumps(results, indent=1, default=str) + "\n")

        words = ["--device", device, *size.agreement]
        results["agreement"] = part("gpu_agreement", words, seconds("agreement"), Path(folder) / "agreement.json")
        keep()
        first, *others = size.precisions
        speed(first)
        allowed = seconds("paper")
        chosen = [*size.paper, f"dtype={first}", *fastest(results["speed"][first]), *arguments.words]
        words = ["--device", device, "--side-by-side", str(arguments.side_by_side), "--seconds", f"{allowed:.0f}"]
        # After its time it still ends its runs, draws and judges.
        results["paper"] = part("gpu_paper", [*words, *chosen], allowed + 60, Path(folder) / "paper.json")
        keep()
        for precision in others:
            speed(precision)
    results["seconds"] = time.monotonic() - began
    keep()
    table(results).show(f"{results.get('gpu', device)}, {results['seconds']:.0f} s in all")
    print(f"written: {out}")
    return 0 if all(status == 0 for status in statuses(results).values()) else 1


if __name__ == "__main__":
    # The measuring way is no way to train: it is measured only.
    assert not MEASURING.keys() & WAYS.keys()
    raise SystemExit(main())
