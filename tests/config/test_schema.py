"""What the schema lets through and what it says of the rest."""

import pytest
import yaml

from identcli.config.errors import ConfigErrors
from identcli.config.preflight import single
from identcli.config.schema import parse
from identcli.store import record


@pytest.fixture(scope="module")
def plain():
    return single([]).config.to_dict()


def changed(config, key, value):
    """A copy of the config with one key set: `model.n_layer`."""
    copy = {name: dict(part) if isinstance(part, dict) else part for name, part in config.items()}
    *groups, last = key.split(".")
    target = copy
    for group in groups:
        target = target[group]
    target[last] = value
    return copy


def messages(config):
    with pytest.raises(ConfigErrors) as caught:
        parse(config)
    return caught.value.messages


def test_a_config_survives_its_own_file(plain, tmp_path):
    record.write_config(tmp_path, plain)
    assert parse(record.read_config(tmp_path)) == parse(plain)


def test_a_float_in_the_file_is_a_float_for_plain_yaml_too(plain, tmp_path):
    record.write_config(tmp_path, changed(plain, "lr", 1e-5))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["lr"] == 1e-5


def test_a_whole_float_is_an_integer(plain):
    steps = parse(changed(plain, "steps", 1e3)).steps
    assert steps == 1000
    assert type(steps) is int


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", "abc", "lr='abc': must be a valid number"),
        ("lr", True, "lr=true: must be a valid number"),
        ("lr", float("inf"), "lr=inf: must be a finite number"),
        ("lr", float("nan"), "lr=nan: must be a finite number"),
        ("lr", 0.0, "lr=0.0: must be greater than 0"),
        ("steps", 1.5, "steps=1.5: must be a valid integer"),
        ("steps", float("nan"), "steps=nan: must be a valid integer"),
        ("steps", float("inf"), "steps=inf: must be a valid integer"),
        ("steps", True, "steps=true: must be a valid integer"),
        ("steps", None, "steps=null: must be a valid integer"),
        ("rebalance.every", -3, "rebalance.every=-3: must be greater than or equal to 0"),
        ("model.block_size", 0, "model.block_size=0: must be greater than or equal to 1"),
        ("model.dropout", 1.0, "model.dropout=1.0: must be less than 1"),
        ("model.n_head", 3, "model.n_head=3: must divide model.n_embd=128"),
        ("model.bias", 1, "model.bias=1: must be a valid boolean"),
        ("device", "cdua", "device='cdua': must be 'auto', 'cpu', 'cuda' or 'mps'. Did you mean cuda?"),
        ("rebalance.circuits", ["kq"], "rebalance.circuits[0]='kq': must be 'qk' or 'ov'"),
        ("optimizer.name", "sdg", "optimizer.name='sdg': must be one of 'sgd', 'adamw'"),
        ("optimizer.momentum", 0.9, "optimizer.momentum: no such option with optimizer.name=adamw"),
        ("optimizer.betas", [0.9, 1.5], "optimizer.betas[1]=1.5: must be less than 1"),
        ("rebalance.evry", 3, "rebalance.evry: no such option. Did you mean rebalance.every?"),
        ("n_layer", 3, "n_layer: no such option. Did you mean model.n_layer?"),
        ("name", 1e5, "name=100000.0: must be text: put it in quotes"),
        ("name", "a/b", "name='a/b': must be a plain folder name, without '/'"),
        ("name", "", "name='': must not be empty"),
        ("model", 3, "model=3: must hold keys: model.…=…"),
    ],
)
def test_each_wrong_value_has_its_line(plain, key, value, message):
    assert messages(changed(plain, key, value)) == [message]


def test_what_is_missing_is_named(plain):
    del plain["model"]["bias"]
    try:
        assert messages(plain) == ["model.bias: is missing"]
    finally:
        plain["model"]["bias"] = True


def test_all_errors_are_told_at_once(plain):
    both = changed(changed(plain, "lr", "abc"), "model.n_layer", 0)
    assert messages(both) == [
        "lr='abc': must be a valid number",
        "model.n_layer=0: must be greater than or equal to 1",
    ]


def test_a_config_cant_be_changed(plain):
    with pytest.raises(ValueError, match="frozen"):
        parse(plain).lr = 2.0
    assert parse(changed(plain, "lr", 1e30)).lr == 1e30, "there is no upper bound on lr"
