"""Offers for half-typed overrides: whole words, from the YAML files."""

import subprocess
import sys
import time

import pytest

from identcli.config.completion import offers
from identcli.config.preflight import single


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("optimizer=", ["optimizer=adamw", "optimizer=sgd", "optimizer=sgd_decay"]),
        ("optim", ["optimizer=adamw", "optimizer=sgd", "optimizer=sgd_decay"]),
        ("case=sgd,adamw_", ["case=sgd,adamw_rebalanced", "case=sgd,adamw_state_only"]),
        ("lr=", ["lr=0.001", "lr=0.25"]),
        ("model.b", ["model.block_size=64", "model.bias=true", "model.bias=false", "model.block_size=256"]),
        ("rebalance.m", ["rebalance.mode=off", "rebalance.mode=on", "rebalance.mode=state_only"]),
        ("hydra/launcher=slurm_", ["hydra/launcher=slurm_gpu", "hydra/launcher=slurm_nodes"]),
        ("nonsense", []),
    ],
)
def test_offers(typed, offered):
    assert [word for word in offers(typed) if word.count(".") < 2 and not word.startswith("optimizer.")] == offered


def test_a_users_folder_has_choices_too(tmp_path):
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer/mine.yaml").write_text("name: sgd\n")
    assert "optimizer=mine" in offers("optimizer=", tmp_path)


def test_what_is_offered_is_accepted():
    for word in ("collect.every=", "schedule.min_ratio=", "model.bias=", "rebalance.circuits=", "name="):
        for offer in offers(word):
            single([offer])


@pytest.mark.parametrize(
    ("shell", "environment", "lines"),
    [
        ("bash", {"COMP_WORDS": "ident train optimizer = sg", "COMP_CWORD": "4"}, ["sgd", "sgd_decay"]),
        ("bash", {"COMP_WORDS": "ident train optimizer =", "COMP_CWORD": "3"}, ["adamw", "sgd", "sgd_decay"]),
        ("bash", {"COMP_WORDS": "ident sweep scale=d", "COMP_CWORD": "2"}, ["scale=demo"]),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "ident train optimizer=sgd_"}, ["optimizer=sgd_decay"]),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "ident train optimizer=sgd_", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            ["optimizer=sgd_decay"],
        ),
    ],
)
def test_in_a_shell(shell, environment, lines):
    began = time.process_time()
    line = "from identcli.cli.app import main; import sys; sys.argv[0] = 'ident'; main()"
    done = subprocess.run(
        [sys.executable, "-c", line], env={"_IDENT_COMPLETE": f"complete_{shell}", **environment}, capture_output=True
    )
    said = done.stdout.decode()
    assert all(word in said for word in lines), (said, done.stderr.decode())
    assert time.process_time() - began < 1.0
