# Every target works on a fresh machine that has Python >= 3.11 and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench clean

help:  ## show these lines
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make the environment .venv with the ident command in it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: ident needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 setup")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## run the paper's cases and its learning-rate sweep at demo size, draw Fig. 2-4, check the claims
	$(BIN)/ident data prepare
	sweep=$$($(BIN)/ident sweep experiment=demo) && $(BIN)/ident plot $$sweep && $(BIN)/ident verify sweep $$sweep

test: $(STAMP)  ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

check: $(STAMP)  ## ruff, types, and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure everything, in turn with nanoGPT and other peers: make bench NANOGPT=path/to/a/checkout
	@test -n "$(NANOGPT)" || { echo "error: name a checkout of nanoGPT: make bench NANOGPT=path/to/it" >&2; exit 2; }
	$(BIN)/python -m benchmarks.training_speed --nanogpt $(NANOGPT)
	$(BIN)/python -m benchmarks.collectors_cost
	$(BIN)/python -m benchmarks.whole_processes
	$(BIN)/python -m benchmarks.sweep_speed
	$(BIN)/python -m benchmarks.memory --nanogpt $(NANOGPT)
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.report

clean:  ## remove the environment and caches, never outputs
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
