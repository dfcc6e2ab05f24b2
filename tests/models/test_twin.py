"""Twins: small, of the same structure, causal, and with the numerical rank that the families predict."""

from dataclasses import replace

import pytest
import torch

from identcli.architecture.builtin import entries, find
from identcli.architecture.description import Architecture
from identcli.architecture.gpt import gpt
from identcli.architecture.shrink import length, shrink
from identcli.architecture.tensors import tensors
from identcli.models.twin import outputs, random_inputs, random_parameters

IDS = [entry["hf_id"] for entry in entries()]


def named(model: str) -> Architecture:
    found = find(model)
    assert found is not None
    return found


def run(twin: Architecture, params: dict[str, torch.Tensor], eps: float = 0.1, log_probs: bool = False) -> torch.Tensor:
    inputs = random_inputs(twin, 3, length(twin), seed=1)
    return outputs(twin, params, inputs, eps, log_probs)


@pytest.mark.parametrize("model", IDS)
def test_a_twin_keeps_the_structure(model: str) -> None:
    real, twin = named(model), shrink(named(model))
    assert {t.name for t in tensors(twin)} == {t.name for t in tensors(real)}
    assert twin.head == real.head
    for big, small in zip(real.stack.blocks, twin.stack.blocks, strict=True):
        for fact in ("norm", "placement", "parallel", "qk_norm", "sinks", "softcap"):
            assert getattr(big, fact) == getattr(small, fact)
        a, b = big.attention, small.attention
        assert (a.q_bias, a.k_bias, a.v_bias, a.o_bias) == (b.q_bias, b.k_bias, b.v_bias, b.o_bias)
        assert (a.rotary == 0, a.rotary == a.qk_size) == (b.rotary == 0, b.rotary == b.qk_size)
        assert (a.kv_groups == 1, a.kv_groups == a.heads) == (b.kv_groups == 1, b.kv_groups == b.heads)


@pytest.mark.parametrize("model", IDS)
def test_every_trained_tensor_has_an_effect(model: str) -> None:
    """Or nothing could be learned from the rank. A key bias alone has none, by softmax."""
    twin = shrink(named(model))
    params = random_parameters(twin, 0)
    before = run(twin, params)
    assert bool(torch.isfinite(before).all())
    for tensor in tensors(twin):
        moved = params | {tensor.name: params[tensor.name] + 0.1 * torch.randn_like(params[tensor.name])}
        change = float((run(twin, moved) - before).abs().max())
        block = twin.stack.blocks[0]
        silent = tensor.name.endswith("b_K") and not (block.attention.rotary or block.sinks)
        assert (change < 1e-12) == silent, tensor.name


def test_a_decoder_sees_no_later_position() -> None:
    twin = shrink(named("llama-2-70b-hf"))
    params = random_parameters(twin, 0)
    inputs = random_inputs(twin, 2, 5, seed=1)
    later = inputs[0][0].clone()
    later[:, -1] = (later[:, -1] + 1) % twin.vocab
    one = outputs(twin, params, inputs, 0.1, False)
    other = outputs(twin, params, [(later, inputs[0][1])], 0.1, False)
    assert torch.equal(one[:, :-1], other[:, :-1])
    assert not torch.equal(one[:, -1], other[:, -1])


def test_query_heads_read_the_key_of_their_group() -> None:
    """Head h of H reads kv group h // (H/G): a change of the last key head leaves the first half of the heads alone."""
    twin = shrink(named("meta-llama-3-8b"))
    a = twin.stack.blocks[0].attention
    assert a.heads > a.kv_groups == 2
    params = random_parameters(twin, 0)
    first = params["decoder.0.self.W_O"].clone()
    first[:, :, a.heads * a.v_size // 2 :] = 0  # only the heads of the first group are heard
    params["decoder.0.self.W_O"] = first
    moved = params["decoder.0.self.W_K"].clone()
    moved[:, a.qk_size :] *= 2
    assert torch.equal(run(twin, params), run(twin, params | {"decoder.0.self.W_K": moved}))
    moved[:, : a.qk_size] *= 2
    assert not torch.equal(run(twin, params), run(twin, params | {"decoder.0.self.W_K": moved}))


def test_few_tokens_stay_few() -> None:
    demo = shrink(gpt("demo", 4, 4, 128, 64, 65, bias=True))
    assert demo.vocab < demo.width <= demo.vocab + length(demo)
    narrow = shrink(gpt("cpu", 6, 6, 384, 64, 65, bias=True))
    assert narrow.vocab + length(narrow) < narrow.width


def test_log_probabilities_are_the_logits_shifted() -> None:
    twin = shrink(replace(named("gpt2")))
    params = random_parameters(twin, 0)
    logits, log_probs = run(twin, params), run(twin, params, log_probs=True)
    shift = logits - log_probs
    assert float((shift - shift[..., :1]).abs().max()) < 1e-12
    assert float((log_probs.exp().sum(-1) - 1).abs().max()) < 1e-12
