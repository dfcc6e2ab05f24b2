"""The collector around a real optimizer step, against numpy one head at a time."""

import copy

import numpy as np
import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention
from identcli.collectors import attach, every, hook, observed
from identcli.layouts.nanogpt import nanogpt
from identcli.layouts.places import Layout, Place
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.optimizers import build_optimizer
from slow_measure import measure

CONFIG = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=12, block_size=8)
SGD = {"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}
DECAYING = {"name": "sgd", "weight_decay": 0.3, "momentum": 0.0}
ADAMW = {"name": "adamw", "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}


def make(optimizer, dtype=torch.float32, lr=0.1, config=CONFIG):
    """A model whose biases are not zero, so that what is said of biases can fail."""
    torch.manual_seed(3)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, build_optimizer(parameters=model.parameters(), lr=lr, **optimizer)


def backward(model, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 11, (4, 9), generator=generator)
    model.zero_grad()
    model(tokens[:, :-1], tokens[:, 1:])[1].backward()


def snapshot(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("optimizer", [SGD, DECAYING, ADAMW], ids=["sgd", "decaying", "adamw"])
@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_every_column_equals_the_slow_twin(optimizer, circuit):
    model, stepper = make(optimizer)
    start = snapshot(model)
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), circuits=[circuit], when=every(1))
    states, gradients = [start], []
    for step in range(3):
        backward(model, step)
        gradients.append({name: value.grad.clone() for name, value in model.named_parameters()})
        stepper.step()
        states.append(snapshot(model))
    table = collector.table("heads")
    assert table["step"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    plain = optimizer["name"] == "sgd"
    for row in range(12):
        step, layer, head = (int(table[name][row]) for name in ("step", "layer", "head"))
        gradient = gradients[step] if plain else None
        expected = measure(
            states[step],
            states[step + 1],
            start,
            layer,
            head,
            2,
            circuit,
            gradient,
            lr=0.1,
            decay=optimizer["weight_decay"],
        )
        for name, value in expected.items():
            # Both are float64 on the same float32 numbers; least squares and eigenvalues lose at most ~1e6 of the
            # 1e-16, and a share far below 1 is only as exact as its rounding relative to the whole update.
            scale = 1.0 if name.startswith("rho") else abs(value)
            assert abs(table[name][row] - value) <= 1e-9 * scale + 1e-13, (name, step, layer, head)


@pytest.mark.parametrize("at_once", [hook.LARGEST, 1], ids=["all layers at once", "one layer at a time"])
@pytest.mark.parametrize("moved", [None, "weight", "bias"])
def test_what_a_step_left_is_used_again_only_while_it_is_still_so(moved, at_once, monkeypatch):
    """The grams after a step are those before the next one, unless weights or biases were moved in between, even behind
    autograd's back. The rows are always those of a collector that has never seen the step before."""
    monkeypatch.setattr(hook, "LARGEST", at_once)
    parts = 1 if at_once > 1 else CONFIG.n_layer
    computed = []
    grams = observed.grams
    monkeypatch.setattr(observed, "grams", lambda pair: computed.append(pair) or grams(pair))
    rows = []
    for watched_from in (0, 3):
        model, stepper = make(ADAMW)
        for step in range(4):
            backward(model, step)
            if step == watched_from:
                collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
                computed.clear()
            if step == 3 and moved:
                getattr(model.transformer.h[0].attn.c_attn, moved).data.mul_(1.5)
            stepper.step()
        rows.append({name: column[-4:] for name, column in collector.table("heads").items()})
        # Each step that is measured: its end, and its beginning where that is news.
        assert len(computed) == parts * {0: 4 + 1 + bool(moved), 3: 1 + 1}[watched_from]
    for name in set(rows[0]) - {"step", "charge_change"}:  # the second has another start
        np.testing.assert_array_equal(rows[0][name], rows[1][name], err_msg=name)


@pytest.mark.parametrize(("module", "most"), [(hook, "LARGEST"), (observed, "IN_THE_CACHE")])
def test_some_layers_at_a_time_give_what_all_at_once_give(module, most, monkeypatch):
    tables = []
    for at_once in (getattr(module, most), 1):
        monkeypatch.setattr(module, most, at_once)
        model, stepper = make(ADAMW)
        collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
        for step in range(2):
            backward(model, step)
            stepper.step()
        tables.append(collector.table("heads"))
    whole, parts = tables
    assert parts["layer"].tolist() == [0, 0, 1, 1] * 2
    for name in whole.keys() - {"circuit"}:
        # Float64 sums in another order at most: 1e-16 times the condition of a difference of charges, 1e4 here.
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-11, err_msg=name)


def test_prediction_is_exact_for_sgd_and_absent_otherwise():
    # In float64 the identity of theory 15 holds to rounding: some 1e-16 of |C| ~ 1, against drifts from 1e-8 on.
    for optimizer in (SGD, DECAYING):
        model, stepper = make(optimizer, torch.float64)
        collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
        backward(model, 0)
        stepper.step()
        table = collector.table("heads")
        np.testing.assert_allclose(table["drift_bias"], table["drift_predicted"], rtol=1e-9, atol=3e-16)
        # The counter-example: without the bias column the identity fails by a first-order term.
        assert (np.abs(table["drift"] / table["drift_predicted"] - 1) > 1e-5).all()
    for optimizer in (ADAMW, {**SGD, "momentum": 0.9}):
        model, stepper = make(optimizer)
        collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
        backward(model, 0)
        stepper.step()
        assert np.isnan(collector.table("heads")["drift_predicted"]).all()


def test_a_gradient_step_avoids_the_unidentified_subspace_only_with_its_biases():
    model, stepper = make(SGD, torch.float64)
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
    backward(model, 0)
    stepper.step()
    table = collector.table("heads")
    # Rounding of the weights, 1e-16, against an update of 1e-2: shares of 1e-28; the key bias adds its own 1e-30.
    assert table["rho_bias"].max() < 1e-22
    assert table["rho"].min() > 1e-9


def test_measuring_changes_nothing():
    losses, weights = [], []
    for measured in (False, True):
        config = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=12, block_size=8, dropout=0.3)
        model, stepper = make(ADAMW, config=config)
        torch.manual_seed(9)
        if measured:
            attach(stepper, model.named_parameters(), nanogpt(config.attention), circuits=["qk", "ov"], when=every(1))
        run = []
        for step in range(5):
            backward(model, step)
            run.append(model(torch.arange(8)[None] % 11, torch.arange(8)[None] % 11)[1].item())
            stepper.step()
        losses.append(run)
        weights.append(snapshot(model))
    assert losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_gradient_of_the_biases_is_reported_per_layer():
    model, stepper = make(SGD)
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
    backward(model, 0)
    expected = [block.attn.c_attn.bias.grad.clone() for block in model.transformer.h]
    stepper.step()
    table = collector.table("biases")
    for layer, gradient in enumerate(expected):
        for name, part in (("query", gradient[:12]), ("key", gradient[12:24])):
            assert table[f"{name}_max"][layer] == pytest.approx(part.abs().max().item(), rel=1e-6)
            assert table[f"{name}_norm"][layer] == pytest.approx(part.norm().item(), rel=1e-6)
    # The softmax cancels the key bias: what is left is rounding, 1e-7 of gradients that pass through.
    assert (table["key_norm"] < 1e-4 * table["query_norm"]).all()


def test_undefined_values_are_not_numbers():
    model, stepper = make(SGD, lr=0.0)
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight.zero_()
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(1))
    backward(model, 0)
    stepper.step()
    table = collector.table("heads")
    for name in ("rho", "rho_bias", "rho_floor", "charge_change", "decay_share"):
        assert np.isnan(table[name]).all(), name
    assert (table["update_norm"] == 0).all()
    assert (table["beta"] == 0).all()


def test_measures_when_due_and_stops_when_detached():
    model, stepper = make(SGD)
    with attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention), when=every(3, last=7)) as collector:
        for step in range(8):
            backward(model, step)
            stepper.step()
    backward(model, 9)
    stepper.step()
    assert sorted(set(collector.table("heads")["step"].tolist())) == [0, 3, 6, 7]


def test_goes_on_from_a_saved_state():
    model, stepper = make(SGD)
    layout = nanogpt(CONFIG.attention)
    whole = attach(stepper, model.named_parameters(), layout, when=every(1))
    first = attach(stepper, model.named_parameters(), layout, when=every(1))
    for step in range(2):
        backward(model, step)
        stepper.step()
    state = copy.deepcopy(first.state_dict())
    first.detach()
    second = attach(stepper, model.named_parameters(), layout, when=every(1))
    without = attach(stepper, model.named_parameters(), layout, when=every(1))
    second.load_state_dict(state)
    backward(model, 2)
    stepper.step()
    last = whole.table("heads")["step"] == 2
    assert np.array_equal(second.table("heads")["charge_change"], whole.table("heads")["charge_change"][last])
    assert not np.array_equal(without.table("heads")["charge_change"], whole.table("heads")["charge_change"][last])


def test_grouped_rotary_attention_of_ones_own():
    """Separate projections, two query heads a key, partly rotary: the rows of `head` are kv groups."""
    facts = Attention(1, 4, 2, 6, 4, 4, q_bias=True, k_bias=True, rotary=2)
    names = {"W_Q": ("q.w", 4), "W_K": ("k.w", 2), "W_V": ("v.w", 2), "b_Q": ("q.b", 4), "b_K": ("k.b", 2)}
    places = {role: Place(name, 0, heads, 4, 4) for role, (name, heads) in names.items()}
    places["W_O"] = Place("o.w", 0, 4, 4, 4, axis=1)
    torch.manual_seed(0)
    shapes = {"q.w": (16, 6), "k.w": (8, 6), "v.w": (8, 6), "q.b": (16,), "k.b": (8,), "o.w": (6, 16)}
    parameters = {name: torch.randn(shape, dtype=torch.float64).requires_grad_() for name, shape in shapes.items()}
    stepper = torch.optim.SGD(parameters.values(), lr=0.1)
    collector = attach(stepper, parameters, Layout(facts, places), circuits=["qk", "ov"], when=every(1))
    for value in parameters.values():
        value.grad = torch.randn_like(value)
    before = {name: value.detach().clone() for name, value in parameters.items()}
    stepper.step()
    table = collector.table("heads")
    ov = table["circuit"] == "ov"
    assert table["head"].tolist() == [0, 1, 0, 1]
    for group in range(2):
        q, k = (before["q.w"].view(2, 2, 4, 6)[group], before["k.w"].view(2, 4, 6)[group])
        dq, dk = (-0.1 * parameters[n].grad.view(2, -1, 4, 6)[group] for n in ("q.w", "k.w"))
        rotated = torch.eye(4, dtype=torch.float64)[:2]
        turn = torch.tensor([[0, -1], [1, 0.0]], dtype=torch.float64)
        directions = [rotated.T @ rotated, rotated.T @ turn @ rotated]
        directions += [
            torch.eye(4, dtype=torch.float64)[[i]].T @ torch.eye(4, dtype=torch.float64)[[j]]
            for i in (2, 3)
            for j in (2, 3)
        ]
        T = torch.stack([torch.cat([(S @ q).flatten(), (-S.T @ k).flatten()]) for S in directions], 1)
        y = torch.cat([dq.flatten(), dk.flatten()])
        fit = T @ torch.linalg.lstsq(T, y[:, None]).solution[:, 0]
        assert table["rho"][~ov][group] == pytest.approx((fit @ fit / (y @ y)).item(), rel=1e-9)


def test_any_optimizer_can_be_watched():
    model, _ = make(SGD)
    stepper = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention))
    backward(model, 0)
    stepper.step()
    table = collector.table("heads")
    assert (table["rho"] > 1e-4).all()
    assert np.isnan(table["decay_share"]).all()


def test_bad_input_is_named():
    model, stepper = make(SGD)
    with pytest.raises(UserError, match=r"no tensor 'transformer.h.0.attn.c_attn.weight'"):
        attach(stepper, {"w": torch.zeros(2)}, nanogpt(CONFIG.attention))
    with pytest.raises(UserError, match="the embedding is 12 there, the layout needs 16"):
        attach(stepper, model.named_parameters(), nanogpt(GPTConfig(11, 2, 2, 16, 8).attention))
    collector = attach(stepper, model.named_parameters(), nanogpt(CONFIG.attention))
    with pytest.raises(UserError, match="nothing measured in table 'heads' yet"):
        collector.table("heads")
