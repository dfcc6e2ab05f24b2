#!/usr/bin/env bash
# Everything that needs a GPU, in one run of under ten minutes on one H200-class GPU:
#   1. the GPU trains and measures as the CPU does (losses, ρ, β, τ, μ, drift);
#   2. tokens a second in bfloat16, TF32 and float32: as it is, as a CUDA graph, compiled, both; nanoGPT compiled, in turn;
#   3. the paper's five cases and four learning rates at its size: nine runs of 5,000 steps side by side, and their figures.
# One table, and benchmarks/results/gpu-<date>.json. Exit status: 0 when all went well, 1 when a part failed or did not
# agree (the others' results stand), 2 without a GPU. docs/GPU.md says more.
#
#   make setup && NANOGPT=path/to/a/checkout benchmarks/gpu.sh
#   DEVICE=cpu SIZE=small benchmarks/gpu.sh        # does the script run? two minutes on two cores, no GPU
#
# NANOGPT       a checkout of nanoGPT; without one ident is measured alone
# DEVICE, SIZE  cuda or cpu, paper or small
# SIDE_BY_SIDE  how many of the paper's runs at once (5)
# Words like dtype=float32 eval.batches=200 are overrides for the paper's nine runs.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
test -x "$python" || { echo "error: $python: no such file; run make setup first" >&2; exit 2; }

# Asking whether there is a GPU must not open it: each run is forked off a process that has asked.
export PYTORCH_NVML_BASED_CUDA_CHECK=1
"$(dirname "$python")/ident" data prepare > /dev/null
exec "$python" -m benchmarks.gpu --device "${DEVICE:-cuda}" --size "${SIZE:-paper}" \
    --side-by-side "${SIDE_BY_SIDE:-5}" ${NANOGPT:+--nanogpt "$NANOGPT"} "$@"
