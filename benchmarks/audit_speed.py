"""How long an audit takes beside the linear algebra in it, and how much memory audit and rebalancing need.

    python -m benchmarks.audit_speed [--layers 30 --width 576 --heads 9 --kv-groups 3] [--threads N]

A Llama of that size with random weights is written to a temporary folder, float32, attention alone. Timed in turn, best
of five: `judge` on all pairs as batches in memory (the linear algebra alone), and the whole audit. Then the peak
memory of `ident audit` and `ident rebalance` as commands, beside 1.5 times the attention tensors of a layer + 300 MB.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from identcli.checkpoints.audit import audit, judge
from identcli.checkpoints.checkpoint import open_checkpoint
from identcli.checkpoints.layer import pieces, views
from identcli.checkpoints.locate import locate
from identcli.checkpoints.tensor_file import read
from identcli.symmetry.pair import Pair

TIMES = 5


def write(path: Path, layers: int, width: int, heads: int, kv_groups: int) -> int:
    """Write the model a layer at a time, in shards; bytes of the attention tensors of one layer."""
    size, weight_map, of_layer = width // heads, {}, 0
    for layer in range(layers):
        at = f"model.layers.{layer}.self_attn."
        rows = {"q": width, "k": kv_groups * size, "v": kv_groups * size}
        tensors = {f"{at}{x}_proj.weight": torch.randn(count, width) for x, count in rows.items()}
        tensors[f"{at}o_proj.weight"] = torch.randn(width, width)
        save_file(tensors, path / f"model-{layer}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{layer}.safetensors")
        of_layer = sum(tensor.nbytes for tensor in tensors.values())
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {"model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    (path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": kv_groups}))
    return of_layer


def linear_algebra_s(path: Path) -> float:
    """Seconds that `judge` takes on all pairs of the model at once, one batch a circuit."""
    checkpoint = open_checkpoint(path)
    batches = []
    for pairs in locate(checkpoint).located:
        some = []
        for layer in pairs.layers:
            some += list(pieces(pairs, views(pairs, layer, lambda name: read(checkpoint.entry(name)))))
        sides = (torch.cat([getattr(piece.pair, side) for piece in some], 1) for side in "AB")
        batches.append((pairs.family.group, Pair(*sides)))
    return best(lambda: [judge(*batch) for batch in batches])


def best(work: Callable[[], object]) -> float:
    """The shortest of several times, in seconds."""
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_mib(*words: str) -> float:
    """Peak memory of an `ident` command. Linux alone tells it without what the parent process had."""
    code = "import sys; from identcli.cli.app import answer; answer(sys.argv[1:]); "
    code += "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-2]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 30), ("width", 576), ("heads", 9), ("kv-groups", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.mkdir()
        of_layer = write(path, asked.layers, asked.width, asked.heads, asked.kv_groups)
        alone, whole = linear_algebra_s(path), best(lambda: audit(path))
        print(f"linear algebra alone {alone:.2f} s, audit {whole:.2f} s: {alone / whole:.0%} of its speed")
        bound = 1.5 * of_layer / 2**20 + 300
        for words in (("audit", str(path)), ("rebalance", str(path), str(Path(folder) / "out"))):
            print(f"ident {words[0]}: peak {peak_mib(*words):.0f} MiB; 1.5 x a layer + 300 MB is {bound:.0f}")


if __name__ == "__main__":
    main()
