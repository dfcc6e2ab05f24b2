"""Dropout and attention with dropout on a CPU: the functions are torch's, the masks have the right distribution."""

import math

import pytest
import torch
from torch.nn import functional as F

from identcli.models import dropout
from identcli.models.dropout import Dropout, causal_attention
from identcli.models.gpt import GPT, GPTConfig

P = 0.2
B, T, H, D = 3, 11, 2, 4


def inputs(length=T, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, length, 3 * H * D, dtype=dtype, generator=generator, requires_grad=True)


def plain_attention(qkv, mask):
    """The textbook's formula, with a given mask (B, H, T, T) of 0 and 1 / (share kept) on the probabilities."""
    q, k, v = (part.unflatten(2, (H, D)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    length = qkv.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    probabilities = (q @ k.mT / math.sqrt(D)).masked_fill(later, -math.inf).softmax(-1)
    return (probabilities * mask @ v).transpose(1, 2).flatten(2)


def mask_drawn(length, seed):
    """The mask that `causal_attention` draws after this seed, read off its output: q = k = 0 makes all probabilities
    of a query equal, and as values a position at a time is 1 and the others 0."""
    mask = torch.zeros(B, H, length, length, dtype=torch.float64)
    for key in range(length):
        qkv = torch.zeros(B, length, 3, H, D, dtype=torch.float64)
        qkv[:, key, 2] = 1
        torch.manual_seed(seed)
        y = causal_attention(qkv.flatten(2).requires_grad_(), H, P)
        mask[..., key] = y.detach().unflatten(2, (H, D))[..., 0].transpose(1, 2)
    return mask * torch.arange(1, length + 1)[:, None]


@pytest.mark.parametrize("queries", [128, 4, 1])
def test_attention_is_the_textbooks_under_the_mask_that_it_drew(monkeypatch, queries):
    """Forward and backward, also where a block of queries ends within the sequence, and with one shorter than it."""
    monkeypatch.setattr(dropout, "QUERIES", queries)
    qkv, weights = inputs(), torch.randn(B, T, H * D, dtype=torch.float64)
    mask = mask_drawn(T, seed=5)
    kept = 1 - round(P * 65536) / 65536
    assert ((mask - 1 / kept).abs() < 1e-12).logical_or(mask == 0).all()
    assert 0 < (mask.tril() == 0).logical_and(torch.ones(T, T).tril() == 1).sum() < mask.numel() / 4
    torch.manual_seed(5)
    ours = causal_attention(qkv, H, P)
    twin = plain_attention(qkv, mask)
    assert (ours - twin).abs().max() < 1e-14
    (gradient,) = torch.autograd.grad(ours, qkv, weights)
    (of_twin,) = torch.autograd.grad(twin, qkv, weights)
    assert (gradient - of_twin).abs().max() < 1e-13
    # The comparison can fail: another mask, another gradient.
    torch.manual_seed(6)
    (other,) = torch.autograd.grad(causal_attention(qkv, H, P), qkv, weights)
    assert (other - of_twin).abs().max() > 1e-3


@pytest.mark.parametrize("length", [1, 128, 300])
def test_without_dropping_it_is_the_fused_kernel(length):
    """The same code with nothing dropped, in float32: equal to float32 rounding of sums of up to 300 terms."""
    qkv = inputs(length, torch.float32)
    q, k, v = (part.unflatten(2, (H, D)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    ours = dropout._Attention.apply(qkv, H, 0.0)
    weights = torch.randn(ours.shape)
    (gradient,), (of_fused,) = (torch.autograd.grad(y, qkv, weights) for y in (ours, fused))
    assert (ours - fused).abs().max() < 1e-5
    assert (gradient - of_fused).abs().max() < 1e-5 * of_fused.abs().max().clamp_min(1)


@pytest.mark.parametrize("p", [0.004, 0.1, 0.2, 0.5, 0.9])
def test_entries_are_dropped_with_probability_p_each_on_its_own(p):
    torch.manual_seed(0)
    n = 1 << 20
    zero = (Dropout(p)(torch.ones(n)) == 0).double()
    # Five standard deviations of a mean of n coin flips; the probability itself is a multiple of 2⁻¹⁶.
    assert abs(zero.mean() - p) < 5 * math.sqrt(p * (1 - p) / n) + 2**-17
    # Neighbours, and entries that come from the same 64 bits, know nothing of each other.
    for lag in (1, 2, 3, 4, 8, 1024):
        x, y = zero[:-lag] - zero.mean(), zero[lag:] - zero.mean()
        assert abs((x * y).mean()) < 5 * p * (1 - p) / math.sqrt(n - lag), lag


def test_what_is_kept_keeps_the_mean_and_the_gradient_meets_the_same_mask():
    torch.manual_seed(0)
    x = torch.linspace(1, 2, 100_003, requires_grad=True)
    y = Dropout(P)(x)
    y.sum().backward()
    kept = 1 - round(P * 65536) / 65536
    assert torch.equal(x.grad == 0, y == 0)
    assert x.grad.unique().tolist() == pytest.approx([0.0, 1 / kept], rel=1e-7)
    assert (y - x * x.grad).abs().max() < 1e-6
    assert abs(y.mean() / x.mean() - 1) < 5 * math.sqrt(P / (1 - P) / len(x))


def test_a_seed_gives_one_mask_and_the_next_call_another():
    layer, x = Dropout(P), torch.ones(1000)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_and_nearly_all_at_the_end_of_the_range():
    x = torch.randn(5, 7)
    assert Dropout(P).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert Dropout(1 - 1e-9)(torch.ones(10_000)).isfinite().all()


def test_a_model_with_dropout_draws_and_one_in_evaluation_does_not():
    torch.manual_seed(0)
    model = GPT(GPTConfig(13, n_layer=2, n_head=2, n_embd=8, block_size=6, dropout=P))
    tokens = torch.randint(13, (4, 6))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
