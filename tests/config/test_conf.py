"""Every YAML composes to a valid config, and what the design promises of the groups holds."""

from functools import cache

import pytest

from identcli.config import security
from identcli.config.folders import conf_dir
from identcli.config.preflight import many as work_out
from identcli.config.preflight import single

many = cache(lambda *words: work_out(words))

FILES = sorted(path.relative_to(conf_dir()) for path in conf_dir().rglob("*.yaml") if path.name != "config.yaml")
RUN_GROUPS = [path for path in FILES if path.parent.name != "experiment"]
EXPERIMENTS = [path for path in FILES if path.parent.name == "experiment"]


def typed(path):
    return [f"{path.parent}={path.stem}", *(["data.path=a.txt"] if path.stem == "text" else [])]


@pytest.mark.parametrize("path", RUN_GROUPS, ids=str)
def test_every_choice_of_every_group_makes_a_valid_run(path):
    assert single(typed(path)).config.steps > 0


@pytest.mark.parametrize("path", EXPERIMENTS, ids=str)
def test_every_experiment_is_a_sweep_that_says_its_command(path):
    plan = many(*typed(path))
    assert len(plan.points) > 1
    assert f"#   ident sweep experiment={path.stem}\n" in (conf_dir() / path).read_text()
    assert {point.config.threads for point in plan.points} == {1}


def test_no_yaml_names_code():
    for path in FILES:
        text = (conf_dir() / path).read_text()
        assert "_target_" not in text, path
        assert "()" not in text, path
    assert security.refused({"a": {"_target_": "os.system"}}) != []


def test_defaults_are_those_of_the_design():
    config = single([]).config
    assert (config.model.n_layer, config.model.n_head, config.model.n_embd, config.model.block_size) == (4, 4, 128, 64)
    assert (config.optimizer.name, config.lr, config.optimizer.weight_decay) == ("adamw", 1e-3, 0.1)
    assert (config.collect.mode, config.rebalance.mode, config.steps) == ("paper", "off", 500)


@pytest.mark.parametrize(
    ("words", "optimizer", "lr", "rebalance"),
    [
        (["optimizer=sgd"], "sgd", 0.25, "off"),
        (["optimizer=sgd", "lr=0.1"], "sgd", 0.1, "off"),
        (["case=adamw_rebalanced", "optimizer=sgd"], "sgd", 0.25, "on"),
        (["case=adamw_state_only", "rebalance=on"], "adamw", 1e-3, "on"),
    ],
)
def test_the_command_line_wins_over_the_case(words, optimizer, lr, rebalance):
    config = single(words).config
    assert (config.optimizer.name, config.lr, config.rebalance.mode) == (optimizer, lr, rebalance)


def test_the_demo_is_eight_runs_of_which_the_first_serves_two_figures():
    points = many("experiment=demo").points
    assert [(point.config.optimizer.name, point.config.lr) for point in points] == [
        ("sgd", 0.25),
        ("sgd", 0.25),
        ("adamw", 1e-3),
        ("adamw", 1e-3),
        ("adamw", 1e-3),
        ("sgd", 0.5),
        ("sgd", 0.125),
        ("sgd", 0.0625),
    ]
    assert [point.config.rebalance.mode for point in points[2:5]] == ["off", "on", "state_only"]
    assert {point.config.steps <= 500 for point in points} == {True}
