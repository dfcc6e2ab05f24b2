"""Closed forms against ranks, at small size; and against the families of whole models."""

from dataclasses import replace

import pytest

from identcli.architecture.description import Architecture, Block, Head, Mlp, Norm, Stack, Tokens
from identcli.architecture.families import families
from identcli.architecture.pairs import Attention
from identcli.symmetry.rank import Rank
from identcli.theory.counting import Layer, count, grid, unidentified, verify_counts

GRID = grid()


def test_the_grid_is_large_and_its_layers_small() -> None:
    assert len(GRID) >= 150
    assert len({layer.name for layer in GRID}) == len(GRID)
    sizes = {(f.qk_size > f.embedding) - (f.qk_size < f.embedding) for f in (layer.facts for layer in GRID)}
    assert sizes == {-1, 0, 1}


@pytest.mark.parametrize("layer", GRID[::6], ids=lambda layer: layer.name)
def test_every_sixth_layer_counts_as_predicted(layer: Layer) -> None:
    counted = count(layer, seed=11)
    assert counted.outcome.holds, (
        f"{counted.outcome.claim.statement}: {counted.outcome.measured}, {counted.outcome.note}"
    )
    assert counted.parameters <= 300


# Theory's own table: E, H, G, D, C, biases, rotated rows, and what is unidentified.
KNOWN = [
    (6, 2, 2, 3, 3, "", 0, 36),
    (6, 2, 2, 3, 3, "qkvo", 0, 48),
    (6, 3, 3, 2, 3, "v", 0, 42),
    (5, 2, 2, 2, 4, "v", 0, 43),
    (4, 2, 2, 5, 3, "", 0, 66),
    (4, 2, 2, 5, 3, "qkvo", 0, 84),
    (4, 2, 1, 5, 2, "", 0, 32),
    (4, 2, 1, 5, 2, "qkvo", 0, 41),
    (6, 2, 1, 3, 3, "qkv", 0, 21),
    (8, 4, 2, 2, 2, "qkvo", 2, 16),
    (8, 4, 2, 4, 4, "", 4, 40),
    (6, 3, 1, 4, 2, "qkvo", 4, 10),
]


@pytest.mark.parametrize(("E", "H", "G", "D", "C", "biases", "rotary", "known"), KNOWN)
def test_closed_form_at_known_values(
    E: int, H: int, G: int, D: int, C: int, biases: str, rotary: int, known: int
) -> None:
    q, k, v, o = (letter in biases for letter in "qkvo")
    assert unidentified(Layer(Attention(1, H, G, E, D, C, q, k, v, o, rotary))) == known


@pytest.mark.parametrize(
    ("biases", "plain", "rotary"),
    [("", 32, 24), ("q", 36, 28), ("o", 36, 28), ("qk", 40, 32), ("qkv", 44, 36), ("qkvo", 48, 40)],
)
def test_closed_form_behind_a_layer_norm(biases: str, plain: int, rotary: int) -> None:
    q, k, v, o = (letter in biases for letter in "qkvo")
    facts = Attention(1, 2, 2, 6, 2, 2, q, k, v, o)
    assert unidentified(Layer(facts, "layer+shift")) == plain
    assert unidentified(Layer(replace(facts, rotary=2), "layer+shift")) == rotary


@pytest.mark.parametrize("biases", ["", "qk", "qkv", "qkvo"])
@pytest.mark.parametrize(("D", "rotary"), [(3, 0), (4, 4), (4, 2), (7, 0)])
def test_agrees_with_the_families_of_a_whole_model(biases: str, D: int, rotary: int) -> None:
    """A Llama's attention behind an RMSNorm: the same four families."""
    q, k, v, o = (letter in biases for letter in "qkvo")
    facts = Attention(1, 2, 1, 6, D, 2, q, k, v, o, rotary)
    block = Block(facts, Mlp(4, "silu", gated=True), Norm("rms"))
    model = Architecture("one layer", (Stack("decoder", Tokens(9), (block,), final_norm=Norm("rms")),), Head(False))
    of_attention = ("qk", "ov", "key_bias", "value_bias")
    assert sum(f.dimension for f in families(model) if f.name in of_attention) == unidentified(Layer(facts))


def test_a_wrong_closed_form_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("identcli.theory.counting.unidentified", lambda layer: unidentified(layer) + 1)
    outcome = count(GRID[0]).outcome
    assert outcome.holds is False
    assert outcome.measured == outcome.predicted - 1  # type: ignore[operator]


def test_without_a_gap_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    blurred = Rank(rank=20, columns=32, gap=12.0, last=1e-6, first=1e-7, decided=False)
    monkeypatch.setattr(Layer, "rank", lambda layer, seed: blurred)
    outcome = count(GRID[0]).outcome
    assert outcome.holds is None
    assert outcome.measured is None
    assert "no gap" in outcome.note


def test_two_processes_give_what_one_gives() -> None:
    assert verify_counts(2, 2, GRID[:3]) == verify_counts(2, 1, GRID[:3])
