"""Rebalancing a live model keeps its function; leaving a bias behind does not."""

import copy

import pytest
import torch

from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.optimizers import build_optimizer
from identcli.training.rebalancing import rebalance

CONFIG = GPTConfig(vocab_size=13, n_layer=2, n_head=2, n_embd=16, block_size=8)
LAYOUT = nanogpt(CONFIG.attention)
ADAMW = {"weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
TOKENS = torch.randint(0, 13, (4, 9), generator=torch.Generator().manual_seed(1))


def trained(steps=8, dtype=torch.float64, name="adamw", settings=None):
    """A model after some steps: its biases are far from zero and the optimizer has moments."""
    torch.manual_seed(5)
    model = GPT(CONFIG).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    optimizer = build_optimizer(name, model.parameters(), lr=1e-2, **(settings or ADAMW))
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(TOKENS[:, :-1], TOKENS[:, 1:])[1].backward()
    optimizer.step()


def logits(model):
    return model(TOKENS[:, :-1])[0].detach()


def apply(model, optimizer, circuits=("qk", "ov"), **options):
    return rebalance(dict(model.named_parameters()), optimizer, LAYOUT, circuits, **options)


@pytest.mark.parametrize("target", ["weights", "augmented"])
@pytest.mark.parametrize("circuits", [["qk"], ["ov"], ["qk", "ov"]])
def test_the_function_stays_and_the_charge_goes(target, circuits):
    model, optimizer = trained()
    before = logits(model)
    done = apply(model, optimizer, circuits, target=target)
    # float64: 1e-16 times the condition of the pairs (~1e3) and the depth.
    assert (logits(model) - before).abs().max() < 1e-11 * before.abs().max()
    for each in done:
        zeroed = torch.tensor(each.beta_after if target == "weights" else each.beta_bias_after)
        other = torch.tensor(each.beta_bias_after if target == "weights" else each.beta_after)
        assert zeroed.max() < 1e-12 * torch.tensor(each.beta_before).max()
        assert other.min() > 1e-3  # the other charge is not zero: b_Q b_Qᵀ is left
        assert each.left_alone == 0


def test_float32_changes_outputs_by_rounding_only():
    model, optimizer = trained(dtype=torch.float32)
    before = logits(model)
    apply(model, optimizer)
    # Weights are rounded once, 6e-8 relative, and a logit adds up a few hundred of them.
    assert (logits(model) - before).abs().max() < 1e-5 * before.abs().max()


@pytest.mark.parametrize(("bias", "least"), [(slice(0, 16), 1e-4), (slice(32, 48), 1e-4)], ids=["b_Q", "b_V"])
def test_a_bias_left_behind_changes_the_function(bias, least):
    model, optimizer = trained()
    before, biases = logits(model), [block.attn.c_attn.bias.detach().clone() for block in model.transformer.h]
    apply(model, optimizer)
    with torch.no_grad():
        for block, old in zip(model.transformer.h, biases, strict=True):
            block.attn.c_attn.bias[bias] = old[bias]
    assert (logits(model) - before).abs().max() > least * before.abs().max()


def test_a_second_rebalancing_changes_nothing():
    model, optimizer = trained()
    apply(model, optimizer)
    once = copy.deepcopy(model.state_dict())
    apply(model, optimizer)
    for name, value in model.state_dict().items():
        assert (value - once[name]).abs().max() <= 1e-13 * value.abs().max(), name


def test_only_the_moved_tensors_change():
    model, optimizer = trained()
    old = copy.deepcopy(model.state_dict())
    apply(model, optimizer, ["qk"])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, old[name])}
    assert changed == {f"transformer.h.{layer}.attn.c_attn.{kind}" for layer in range(2) for kind in ("weight", "bias")}
    values = model.transformer.h[0].attn.c_attn.weight[32:]
    assert torch.equal(values, old["transformer.h.0.attn.c_attn.weight"][32:])


def test_state_only_leaves_the_weights_and_clears_what_the_rebalancing_would():
    model, optimizer = trained()
    old = copy.deepcopy(model.state_dict())
    done = apply(model, optimizer, ["qk"], mode="state_only")
    assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())
    assert done[0].beta_before == done[0].beta_after
    without = {name for name, parameter in model.named_parameters() if parameter not in optimizer.state}
    assert without == {f"transformer.h.{layer}.attn.c_attn.{kind}" for layer in range(2) for kind in ("weight", "bias")}


@pytest.mark.parametrize("state", ["clear", "transport"])
def test_the_next_update_does_not_explode(state):
    model, optimizer = trained(steps=30)
    before = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    name = "transformer.h.0.attn.c_attn.weight"
    usual = (model.state_dict()[name] - before[name]).norm()
    apply(model, optimizer, ["qk"], state=state)
    moved = model.state_dict()[name].clone()
    step(model, optimizer)
    # Cleared, Adam's first update is ±lr in every entry, which is its largest; transported it goes on as it was.
    largest = 2 * usual if state == "transport" else 2 * 1e-2 * moved.numel() ** 0.5
    assert (model.state_dict()[name] - moved).norm() < largest


def test_a_kept_first_moment_over_a_zeroed_second_one_explodes():
    """The counter-example: what `clear` and `transport` both avoid."""
    model, optimizer = trained(steps=30)
    parameter = model.transformer.h[0].attn.c_attn.weight
    before = parameter.detach().clone()
    step(model, optimizer)
    usual = (parameter.detach() - before).norm()
    optimizer.state[parameter]["exp_avg_sq"].zero_()
    before = parameter.detach().clone()
    step(model, optimizer)
    assert (parameter.detach() - before).norm() > 2 * usual


def test_transported_momentum_is_the_momentum_of_the_moved_model():
    """SGD's momentum is a sum of gradients: at the moved point it must be the sum of the moved gradients."""
    settings = {"weight_decay": 0.0, "momentum": 0.9}
    model, optimizer = trained(steps=1, name="sgd", settings=settings)
    apply(model, optimizer, state="transport")
    names = dict(model.named_parameters())
    carried = {name: optimizer.state[parameter]["momentum_buffer"].clone() for name, parameter in names.items()}
    # One step was taken, so the buffer is the gradient at the point before it; recompute that point, moved.
    again, fresh = trained(steps=0, name="sgd", settings=settings)
    fresh.zero_grad()
    again(TOKENS[:, :-1], TOKENS[:, 1:])[1].backward()
    gradients = {name: parameter.grad.clone() for name, parameter in again.named_parameters()}
    fresh.step()
    carrier = dict(again.named_parameters())
    for name, parameter in carrier.items():
        fresh.state[parameter]["momentum_buffer"] = gradients[name].clone()
    rebalance(carrier, fresh, LAYOUT, ["qk", "ov"], state="transport")
    for name, parameter in carrier.items():
        assert torch.allclose(fresh.state[parameter]["momentum_buffer"], carried[name], rtol=1e-10, atol=1e-14), name
