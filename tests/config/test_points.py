"""The points of a sweep: products, exact points, what the command line replaces, names of folders (H12)."""

import re

import pytest

from identcli.config.points import combine, distinct, folder_name
from identcli.config.preflight import many, single


def overrides(*words):
    return [point.overrides for point in many(words).points]


def test_the_product_of_what_is_swept():
    assert overrides("optimizer=sgd", "lr=0.5,0.25") == [["lr=0.5"], ["lr=0.25"]]
    assert overrides("case=glob(sgd*)", "seed=range(1,2)") == [["case=sgd", "seed=1"], ["case=sgd_decay", "seed=1"]]
    assert combine({"a": ["a=1", "a=2"], "b": ["b=3", "b=4"]}, [], []) == [
        ["a=1", "b=3"],
        ["a=1", "b=4"],
        ["a=2", "b=3"],
        ["a=2", "b=4"],
    ]


def test_nothing_swept_is_one_point():
    [point] = many(["lr=0.5"]).points
    assert (point.folder, point.overrides, point.config.lr) == ("base", [], 0.5)


def test_equal_points_run_once():
    assert overrides("lr=1e-3,0.001") == [["lr=0.001"]]
    assert overrides("device=cpu,auto") == [["device=cpu"]], "the device doesn't change what is asked"


def test_the_command_line_replaces_a_key_of_the_experiment():
    assert overrides("experiment=fig4", "lr=0.3,0.1") == [["lr=0.3"], ["lr=0.1"]]
    assert overrides("experiment=fig4", "lr=0.3") == [[]]


def test_the_command_line_replaces_a_key_of_exact_points():
    exact = [["case=sgd", "lr=0.5"], ["case=sgd", "lr=0.25"], ["case=adamw"]]
    assert combine({}, exact, ["lr"]) == [["case=sgd"], ["case=sgd"], ["case=adamw"]]
    assert combine({"seed": ["seed=1", "seed=2"]}, exact[2:], ["seed"]) == [
        ["case=adamw", "seed=1"],
        ["case=adamw", "seed=2"],
    ]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["case=sgd", "lr=0.5"], "case-sgd_lr-0.5"),
        (["rebalance.every=50"], "rebalance.every-50"),
        (["data.path='out/a,b=c d.txt'"], "data.path-out-a-b-c-d.txt"),
        (["rebalance.circuits=[qk,ov]"], "rebalance.circuits-qk-ov"),
        (["lr=-1"], "lr--1"),
        ([], "base"),
    ],
)
def test_folder_names_are_safe(words, name):
    assert folder_name(words) == name
    assert re.fullmatch(r"[\w.+-]+", name)


def test_names_that_collide_or_are_long_end_in_the_hash():
    assert distinct(["a", "A", "b"], ["1", "2", "3"]) == ["a_1", "A_2", "b"]
    [long] = distinct(["x" * 300], ["abc"])
    assert len(long) < 100
    assert long.endswith("_abc")


@pytest.mark.parametrize(
    "words",
    [
        ["case=sgd,adamw_rebalanced", "rebalance.circuits=[qk],[qk,ov]", "threads=null,1"],
        ["data=text", "data.path='a=b.txt','c d'", "optimizer=sgd,adamw", "optimizer.weight_decay=0,1e-3"],
    ],
)
def test_points_that_share_a_composition_are_as_if_composed_alone(words):
    plan = many(words)
    assert len(plan.points) in (4, 8)
    for point in plan.points:
        assert single([*plan.words, *point.overrides]).config == point.config
