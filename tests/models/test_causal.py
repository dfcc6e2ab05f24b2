"""Attention on a CPU, with dropout and of short sequences: the function is torch's."""

import math

import pytest
import torch
from torch.nn import functional as F

from identcli.models import causal
from identcli.models.causal import causal_attention

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
    monkeypatch.setattr(causal, "QUERIES", queries)
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


def dropping(qkv):
    return causal._Dropping.apply(qkv, H, 0.0)


def short(qkv):
    return causal._Short.apply(qkv, H)


@pytest.mark.parametrize(
    ("function", "length"), [(dropping, 1), (dropping, 128), (dropping, 300), (short, 1), (short, 128)]
)
def test_without_dropping_it_is_the_fused_kernel(function, length):
    """Nothing dropped, in float32: equal to float32 rounding of sums of up to 300 terms."""
    qkv = inputs(length, torch.float32)
    q, k, v = (part.unflatten(2, (H, D)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    ours = function(qkv)
    weights = torch.randn(ours.shape)
    (gradient,), (of_fused,) = (torch.autograd.grad(y, qkv, weights) for y in (ours, fused))
    assert (ours - fused).abs().max() < 1e-5
    assert (gradient - of_fused).abs().max() < 1e-5 * of_fused.abs().max().clamp_min(1)


def test_without_dropout_it_is_the_textbooks():
    """In float64, forward and backward: to rounding of 1e-16 of sums of a dozen numbers of order 1."""
    qkv, weights = inputs(), torch.randn(B, T, H * D, dtype=torch.float64)
    ours, twin = causal_attention(qkv, H), plain_attention(qkv, torch.ones(T, T))
    assert type(ours.grad_fn).__name__ == "_ShortBackward"
    assert (ours - twin).abs().max() < 1e-14
    (gradient,), (of_twin,) = (torch.autograd.grad(y, qkv, weights) for y in (ours, twin))
    assert (gradient - of_twin).abs().max() < 1e-13
    # The comparison can fail: a key of the future moves it by far more.
    seen = plain_attention(qkv.flip(1), torch.ones(T, T)).flip(1)
    assert (ours - seen).abs().max() > 1e-3


@pytest.mark.parametrize("length", [causal.SHORT, causal.SHORT + 1])
def test_only_short_sequences_leave_the_fused_kernel(length):
    taken = type(causal_attention(inputs(length), H).grad_fn).__name__ == "_ShortBackward"
    assert taken == (length <= causal.SHORT)


def test_without_a_gradient_the_fused_kernel_does_it(monkeypatch):
    monkeypatch.setattr(causal._Short, "apply", None)
    qkv = inputs()
    with torch.no_grad():
        inside = causal_attention(qkv, H)
    assert torch.equal(inside, causal_attention(qkv.detach(), H))
    with pytest.raises(TypeError):
        causal_attention(qkv, H)
