"""A run folder with invented numbers, written through the store, for figures of any size."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from identcli.config.preflight import single
from identcli.store import record
from identcli.store.metrics import SCHEMAS, MetricWriter

ROWS_A_PART = 360_000


def write_run(folder: Path, steps: int, words: Sequence[str] = ("scale=cpu",)) -> int:
    """A finished run of so many steps, every one of them measured; how many rows its table of heads has.

    The layers and heads are those of the config. β and the like wander smoothly, each head in its own way.
    """
    config = single([*words, f"steps={steps}", "collect.every=1"]).config.to_dict()
    folder.mkdir(parents=True)
    record.write_config(folder, config)
    layers, heads = config["model"]["n_layer"], config["model"]["n_head"]
    layer, head = np.divmod(np.arange(layers * heads), heads)
    draw = np.random.default_rng(0)
    start = draw.uniform(0.1, 0.3, layers * heads)
    columns = [name for name, column in SCHEMAS["heads"].items() if column.kind == "float32"]
    part = max(1, ROWS_A_PART // (layers * heads))
    with MetricWriter(folder) as writer:
        for step in range(steps):
            now = (start * (1 + step / steps) + 1e-3 * draw.standard_normal(layers * heads)).astype(np.float32)
            values = dict.fromkeys(columns, now)
            writer.add("heads", step, layer=layer, head=head, circuit="qk", **values)
            small = np.full(layers, 1e-9)
            biases = {"query_max": now[:layers], "query_norm": now[:layers], "key_max": small, "key_norm": small}
            writer.add("biases", step, layer=np.arange(layers), **biases)
            loss = 4.2 * (1 + step) ** -0.1
            writer.add("train", step, loss=loss, lr=1e-3, grad_norm=1.0, tokens=step * 768, elapsed_s=float(step))
            if step % part == part - 1:
                writer.flush()
        for state in range(0, steps + 1, max(1, steps // 10)):
            for split in ("train", "val"):
                writer.add("eval", state, split=split, loss=4.2 * (1 + state) ** -0.1)
    record.write_status(folder, state="finished", step=steps, steps=steps)
    return steps * layers * heads


# What somebody without ident would write: β of each head from the Parquet parts, a line each, as PNG and PDF.
PLAIN_PLOT = """
import sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pyarrow.parquet as pq
rows = pq.read_table(sys.argv[1] + "/metrics/heads")
loss = pq.read_table(sys.argv[1] + "/metrics/train", columns=["step", "loss"])
step, layer, head, rho, beta = (rows[name].to_numpy() for name in ("step", "layer", "head", "rho", "beta"))
figure, axes = plt.subplots(1, 3, figsize=(15, 4))
axes[0].plot(loss["step"].to_numpy(), loss["loss"].to_numpy())
for l in range(layer.max() + 1):
    for h in range(head.max() + 1):
        of_head = (layer == l) & (head == h)
        axes[1].plot(step[of_head], rho[of_head])
        axes[2].plot(step[of_head], beta[of_head])
for kind in ("png", "pdf"):
    figure.savefig(sys.argv[1] + "/plain." + kind)
"""


if __name__ == "__main__":  # a process of its own, so that who measures memory stays small
    print(write_run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
