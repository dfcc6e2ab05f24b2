"""The closed forms against numerical ranks of twins, and that a wrong form is found out.

All 27 built-in models hold, with ε > 0 and at ε = 0; here one of every kind, the quick ones, stands for its family.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from identcli.architecture import families as rules
from identcli.architecture.builtin import find
from identcli.architecture.description import Architecture, Head
from identcli.architecture.families import Outputs, families
from identcli.architecture.gpt import gpt
from identcli.symmetry.rank import numerical_rank
from identcli.theory import twin_check
from identcli.theory.twin_check import check, jacobian


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The matrices are small: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def named(model: str) -> Architecture:
    found = find(model)
    assert found is not None
    return found


def measured(architecture: Architecture, kind: Outputs = "log_probs", eps: bool = True) -> int:
    found = numerical_rank(jacobian(architecture, kind, eps, seed=0))
    assert found.decided
    return found.nullity


def predicted(architecture: Architecture, kind: Outputs = "log_probs", eps: bool = True) -> int:
    return sum(family.dimension for family in families(architecture, kind, eps))


@pytest.mark.parametrize(
    "model",
    [
        "bert-base-uncased",  # post-norm, types, a pooler
        "vit-base-patch16-224",  # patches
        "bloom-560m",  # ALiBi, a norm on the embeddings
        "opt-125m",  # ReLU, unread positions
        "falcon-7b",  # parallel branches, one key for all heads
        "t5-small",  # encoder and decoder, relative biases
        "smollm2-135m",  # rotary positions, kv groups, SwiGLU, tied
        "gpt-oss-20b",  # sinks, experts with biases, clamped units
        "olmo-2-1124-7b",  # norms on branch outputs, a QK-norm over all heads
        "gemma-3-4b-pt",  # norms on both sides, a QK-norm per head
    ],
)
def test_one_model_of_every_kind(model: str) -> None:
    done = check(named(model))
    assert done.holds, done.complaint
    # Measured gaps are 1e10 and more; a tenth of a per cent of that would still be beyond doubt.
    assert done.gap > 1e7


@pytest.mark.parametrize("model", ["bert-base-uncased", "deepseek-v3", "whisper-tiny"])
def test_scales_that_are_free_at_epsilon_zero(model: str) -> None:
    done = check(named(model), eps=False)
    assert done.holds, done.complaint


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["log_probs", "logits"])
def test_nanogpt_at_a_size_of_its_own(bias: bool, tied: bool, kind: Outputs) -> None:
    small = replace(gpt("x", 1, 2, 6, 5, 12, bias), head=Head(tied))
    assert measured(small, kind) == predicted(small, kind)


@pytest.mark.parametrize(("size", "v_size"), [(6, 6), (7, 4), (8, 8)])
def test_heads_as_wide_as_the_stream_and_wider(size: int, v_size: int) -> None:
    small = gpt("x", 1, 2, 6, 5, 16, bias=False)
    block = small.stack.blocks[0]
    wide = replace(block, attention=replace(block.attention, qk_size=size, v_size=v_size))
    architecture = replace(small, stacks=(replace(small.stack, blocks=(wide,)),))
    assert measured(architecture) == predicted(architecture)


def test_few_tokens_with_a_tied_head() -> None:
    demo = check(gpt("demo", 4, 4, 128, 64, 65, bias=True), eps=False)
    assert demo.holds, demo.complaint
    assert "small_vocabulary" in demo.by_family
    narrow = check(gpt("cpu", 6, 6, 384, 64, 65, bias=True))
    assert narrow.holds, narrow.complaint
    assert "unseen_directions" in narrow.by_family
    assert narrow.predicted <= narrow.measured <= narrow.predicted + 20  # a lower bound, but a near one


@pytest.mark.parametrize("missing", ["qk", "ones_direction", "table_trade"])
def test_a_forgotten_family_is_found_out(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def fewer(*arguments: object) -> tuple[rules.Family, ...]:
        return tuple(f for f in families(*arguments) if f.name != missing)  # type: ignore[arg-type]

    monkeypatch.setattr(twin_check, "families", fewer)
    done = check(named("gpt2"))
    assert not done.holds
    assert f"{done.predicted} dimensions predicted, {done.measured} measured" in done.complaint


def test_no_gap_is_no_answer() -> None:
    done = check(named("vit-base-patch16-224"))
    undecided = replace(done, rank=replace(done.rank, decided=False, gap=12.0))
    assert not undecided.holds
    assert "can't be told" in undecided.complaint


def test_the_tangents_of_two_families_are_null() -> None:
    """Counting alone would not tell which directions are null: b_K + c, and W_Q, W_K along GL(D)."""
    architecture = gpt("x", 1, 2, 6, 5, 12, bias=True)
    from identcli.architecture.tensors import tensors
    from identcli.models.twin import random_parameters

    params = random_parameters(architecture, 0)
    matrix = jacobian(architecture, "logits", True, seed=0)
    generator = torch.Generator().manual_seed(3)

    def tangent(moves: dict[str, torch.Tensor]) -> torch.Tensor:
        parts = [moves.get(t.name, torch.zeros_like(params[t.name])).flatten() for t in tensors(architecture)]
        return torch.cat(parts)

    s = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    both = torch.block_diag(s, torch.zeros(3, 3, dtype=torch.float64))
    w_q, w_k = params["decoder.0.self.W_Q"][0], params["decoder.0.self.W_K"][0]
    b_q = params["decoder.0.self.b_Q"][0]
    gauge = {
        "decoder.0.self.W_Q": (both @ w_q)[None],
        "decoder.0.self.b_Q": (both @ b_q)[None],
        "decoder.0.self.W_K": (-both.T @ w_k)[None],
    }
    key_bias = {"decoder.0.self.b_K": torch.randn(1, 6, generator=generator, dtype=torch.float64)}
    size = float(matrix.norm())
    for moves in (gauge, key_bias):
        assert float((matrix @ tangent(moves)).norm()) < 1e-12 * size
    wrong = gauge | {"decoder.0.self.W_K": (both.T @ w_k)[None]}
    assert float((matrix @ tangent(wrong)).norm()) > 1e-4 * size
