"""Dropout on a CPU: the function is torch's, the masks have the right distribution."""

import math

import pytest
import torch

from identcli.models.dropout import Dropout
from identcli.models.gpt import GPT, GPTConfig

P = 0.2


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
