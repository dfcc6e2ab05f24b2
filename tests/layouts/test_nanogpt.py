"""nanoGPT's layout on the GPT itself: its roles are what the model computes with, and moving them moves nothing."""

import pytest
import torch

from cases import normal
from identcli.layouts.nanogpt import nanogpt
from identcli.layouts.places import read, write
from identcli.models.gpt import GPT, GPTConfig
from identcli.models.weights import weights
from identcli.symmetry.act import act
from identcli.symmetry.balance import balance
from identcli.symmetry.charge import imbalance
from identcli.symmetry.pair import gather, scatter

L, H, D, E = 2, 3, 4, 12


def gpt(bias: bool = True) -> GPT:
    """A model whose biases are not zero, in float64."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=7, n_layer=L, n_head=H, n_embd=E, block_size=8, bias=bias)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_roles_are_what_the_layers_compute_with(bias: bool) -> None:
    """Queries, keys and values of each head from the roles, beside the fused layer's own output."""
    model = gpt(bias)
    layout, tensors = nanogpt(model.config.attention), dict(model.named_parameters())
    roles = read(layout, "qk", tensors) | read(layout, "ov", tensors)
    assert set(roles) == {"W_Q", "W_K", "W_V", "W_O"} | ({"b_Q", "b_K", "b_V"} if bias else set())
    x = normal(5, E)
    for layer, block in enumerate(model.transformer.h):
        fused = block.attn.c_attn(x).detach()
        for part, letter in enumerate("QKV"):
            for h in range(H):
                slow = x @ roles[f"W_{letter}"][layer, h].T + (roles[f"b_{letter}"][layer, h] if bias else 0)
                columns = slice(part * E + h * D, part * E + (h + 1) * D)
                # 12 products of order 1.
                torch.testing.assert_close(slow, fused[:, columns], rtol=0, atol=1e-13)
        joined = normal(5, E, seed=1)
        out = torch.nn.functional.linear(joined, block.attn.c_proj.weight).detach()
        slow = sum(joined[:, h * D : (h + 1) * D] @ roles["W_O"][layer, h] for h in range(H))
        torch.testing.assert_close(slow, out, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bias", [True, False])
def test_every_entry_of_the_fused_layer_has_one_role(bias: bool) -> None:
    model = gpt(bias)
    layout = nanogpt(model.config.attention)
    counts = {name: torch.zeros_like(tensor) for name, tensor in model.named_parameters()}
    for role, place in layout.places.items():
        for name in layout.names(role):
            place.view(counts[name]).add_(1)
    for name, count in counts.items():
        inside = "c_attn" in name or name.endswith("attn.c_proj.weight")
        assert bool((count == int(inside)).all()), name


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("circuit", ["qk", "ov"])
def test_a_balanced_model_computes_the_same(circuit: str, bias: bool) -> None:
    model = gpt(bias)
    layout, tensors = nanogpt(model.config.attention), dict(model.named_parameters())
    layout.check(tensors, circuit)
    family = model.config.attention.pair(circuit)
    tokens = torch.tensor([[1, 5, 2, 0, 6, 3]])
    before = model(tokens)[0].detach()
    pair = gather(family, read(layout, circuit, tensors))
    step, exists = balance(family.group, pair)
    assert exists.tolist() == [[True] * H] * L
    write(layout, tensors, scatter(family, act(step, pair)))
    after = model(tokens)[0].detach()
    # Two layers in float64; S is conditioned by the product, here up to 1e3.
    torch.testing.assert_close(after, before, rtol=0, atol=1e-11)
    balanced = gather(family, read(layout, circuit, tensors))
    assert float(imbalance(balanced).abs().max()) < 1e-11
    assert float(imbalance(pair).abs().max()) > 0.1
    if bias:
        # The counter-example: the bias of A left where it was.
        write(layout, tensors, scatter(family, balanced._replace(a=pair.a)))
        assert float((model(tokens)[0].detach() - before).abs().max()) > 1e-4


def test_the_layout_fits_the_names_of_a_checkpoint() -> None:
    model = gpt()
    layout = nanogpt(model.config.attention)
    for circuit in ("qk", "ov"):
        layout.check(weights(model), circuit)
    assert layout.tensors("ov")[0] == "transformer.h.0.attn.c_attn.weight"
