"""Every layout against transformers' own classes: which moves keep the function, and that a wrong layout does not.

OK means below 3e-6 of the largest output: transformers casts norms and softmax to float32, whose rounding that is.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from checkpoints.twins import TWINS, Twin, distance, outputs
from identcli.architecture.groups import Group
from identcli.architecture.pairs import Attention
from identcli.checkpoints.audit import audit
from identcli.checkpoints.checkpoint import Checkpoint, open_checkpoint
from identcli.checkpoints.layer import pieces, put, views
from identcli.checkpoints.locate import CIRCUITS, locate
from identcli.checkpoints.rebalance import rebalance
from identcli.checkpoints.tensor_file import read
from identcli.layouts.detect import KINDS, Site, sites
from identcli.layouts.located import Located
from identcli.symmetry.act import act, basis, move

OK = 3e-6
WRONG = 1e-3

every_twin = pytest.mark.parametrize("name", TWINS)


def saved(twin: Twin, path: Path) -> tuple[nn.Module, Checkpoint]:
    model = twin.model()
    model.save_pretrained(path)
    return model, open_checkpoint(path)


def moved(model: nn.Module, located: Sequence[Located], seed: int = 1, forget: str = "") -> nn.Module:
    """A copy of the model, each pair moved by a random element of its group. forget: a role that is left behind."""
    other = copy.deepcopy(model)
    tensors: Mapping[str, Tensor] = other.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for pairs in located:
        group = pairs.family.group
        algebra = basis(group)
        for layer in pairs.layers:
            roles = views(pairs, layer, tensors.__getitem__)
            for piece in pieces(pairs, roles):
                shape = (*piece.pair.A.shape[:-2], len(algebra))
                coefficients = torch.randn(shape, generator=generator, dtype=torch.float64)
                X = torch.einsum("...k,kij->...ij", coefficients, algebra)
                step = move(torch.eye(group.size, dtype=torch.float64) + 0.7 * X / group.size**0.5)
                kept = roles[forget].clone() if forget in roles else None
                put(piece, act(step, piece.pair), roles)
                if kept is not None:
                    roles[forget].copy_(kept)
    return other


@every_twin
def test_moves_of_the_group_keep_the_function_and_others_do_not(name: str, tmp_path: Path) -> None:
    twin = TWINS[name]
    model, checkpoint = saved(twin, tmp_path)
    found = locate(checkpoint)
    assert found.layout == twin.layout
    truth = outputs(model)
    for circuit in CIRCUITS:
        own = [pairs for pairs in found.located if pairs.family.circuit == circuit]
        if circuit == "qk":
            assert ", ".join(dict.fromkeys(str(pairs.family.group) for pairs in own)) == twin.group
        if not own:
            assert any("QK-norm" in skipped.why for skipped in found.skipped)
            continue
        assert distance(outputs(moved(model, own)), truth) < OK
        bias = {"qk": "b_Q", "ov": "b_V"}[circuit]
        if any(bias in pairs.places for pairs in own):
            assert distance(outputs(moved(model, own, forget=bias)), truth) > WRONG
        for pairs in own:
            rotary = pairs.family.group
            if rotary.rotary:
                size = rotary.size
                wrong = {"all of GL": Group(size), "other pairs of rows": replace(rotary, style=_other(rotary.style))}
                if rotary.rotary == 2:  # two rows make one pair, however they are counted
                    wrong.pop("other pairs of rows")
                for group in wrong.values():
                    mistaken = [replace(p, family=replace(p.family, group=group)) for p in own if p is pairs]
                    assert distance(outputs(moved(model, mistaken)), truth) > WRONG


def _other(style: str) -> str:
    return "half" if style == "interleaved" else "interleaved"


@every_twin
def test_rebalanced_files_are_the_same_model_in_balance(name: str, tmp_path: Path) -> None:
    twin = TWINS[name]
    model, _ = saved(twin, tmp_path / "in")
    rebalance(tmp_path / "in", tmp_path / "out")
    again = type(model).from_pretrained(tmp_path / "out", torch_dtype=torch.float64, attn_implementation="eager")
    assert distance(outputs(again.eval()), outputs(model)) < OK
    before, after = audit(tmp_path / "in"), audit(tmp_path / "out")
    assert len(before.rows) == len(after.rows)
    for old, new in zip(before.rows, after.rows, strict=True):
        if old.removable == 1:
            # Rounding of float64, times the condition of the product.
            assert new.imbalance < 1e-14 * max(10.0, new.condition)
        else:
            assert new.imbalance == pytest.approx(old.imbalance * (1 - old.removable), rel=1e-9)
        torch.testing.assert_close(torch.tensor(new.spectrum), torch.tensor(old.spectrum), rtol=1e-9, atol=1e-12)


WRONG_ORDERS = {
    "gpt_neox": "parts",
    "bloom": "parts",
    "falcon_40b": "parts",
    "gpt_bigcode_mha": "parts",
    "phi3": "groups",
}


@pytest.mark.parametrize("name", WRONG_ORDERS)
def test_a_wrong_order_of_heads_has_the_same_shapes_and_is_caught_by_the_function(name: str, tmp_path: Path) -> None:
    model, checkpoint = saved(TWINS[name], tmp_path)
    found = locate(checkpoint)
    kind = replace(KINDS[found.layout], order=WRONG_ORDERS[name])
    [site] = sites(kind, checkpoint.entries)
    truth = outputs(model)
    for pairs in found.located:
        family = pairs.family
        heads = family.groups * family.heads_per_group
        facts = Attention(2, heads, family.groups, 32, 8, 8, **kind.biases(site.of(0), checkpoint.entries))
        places = {role: place for role, place in kind.places(site.at, facts).items() if role in pairs.places}
        assert distance(outputs(moved(model, [replace(pairs, places=places)])), truth) > WRONG


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2"])
def test_under_a_qk_norm_not_even_the_rotary_moves_keep_the_function(name: str, tmp_path: Path) -> None:
    model, checkpoint = saved(TWINS[name], tmp_path)
    site = Site("model.layers.{layer}.self_attn.", (0, 1))
    facts = Attention(2, 4, 2, 32, 8, 8, rotary=8)
    places = {r: p for r, p in KINDS["llama"].places(site.at, facts).items() if r in ("W_Q", "W_K")}
    pairs = Located("", facts.pair("qk"), (0, 1), places)
    assert distance(outputs(moved(model, [pairs])), outputs(model)) > WRONG
    reason = {"olmo2": "one scale of all W_Q"}.get(name, "a scale of each head's W_Q")
    assert [reason in skipped.why for skipped in locate(checkpoint).skipped] == [True]


def test_sinks_are_named_and_left(tmp_path: Path) -> None:
    _, checkpoint = saved(TWINS["gpt_oss"], tmp_path)
    assert [s.what for s in locate(checkpoint).skipped] == ["sinks of model.layers.*.self_attn (2 layers)"]
    rebalance(tmp_path, tmp_path.with_name("out"))
    new = open_checkpoint(tmp_path.with_name("out"))
    for name in checkpoint.entries:
        if name.endswith("sinks"):
            assert torch.equal(read(checkpoint.entry(name)), read(new.entry(name)))
