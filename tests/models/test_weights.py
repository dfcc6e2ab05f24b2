"""Weights leave a model under nanoGPT's names and come back unchanged, or not at all."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from identcli.architecture.errors import UserError
from identcli.models.gpt import GPT, GPTConfig
from identcli.models.weights import load_weights, weights

CONFIG = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=8, block_size=5)
BLOCK = [
    "ln_1.weight",
    "ln_1.bias",
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
]


def model(seed: int, config: GPTConfig = CONFIG) -> GPT:
    torch.manual_seed(seed)
    return GPT(config)


def same(a: GPT, b: GPT) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("bias", [True, False])
def test_the_names_are_nanogpts(bias):
    names = ["transformer.wte.weight", "transformer.wpe.weight"]
    names += [f"transformer.h.{layer}.{name}" for layer in range(2) for name in BLOCK]
    names += ["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"]
    config = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=8, block_size=5, bias=bias)
    tensors = weights(model(0, config))
    assert list(tensors) == [name for name in names if bias or not name.endswith("bias")]
    assert tensors["transformer.h.0.attn.c_attn.weight"].shape == (24, 8)


def test_a_file_and_back(tmp_path):
    first, second = model(0), model(1)
    save_file(weights(first), tmp_path / "model.safetensors")
    assert not same(first, second)
    load_weights(second, load_file(tmp_path / "model.safetensors"))
    assert same(first, second)
    assert second.lm_head.weight is second.transformer.wte.weight
    second.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_prefixes_of_wrappers_and_old_masks_are_passed_over(prefix):
    first, second = model(0), model(1)
    tensors = {prefix + name: tensor for name, tensor in weights(first).items()}
    tensors[prefix + "transformer.h.0.attn.bias"] = torch.ones(1, 1, 5, 5)
    load_weights(second, tensors)
    assert same(first, second)


def test_a_wrapped_model_has_the_same_names():
    first, second = model(0), model(1)
    load_weights(torch.nn.DataParallel(second), weights(torch.nn.DataParallel(first)))
    assert same(first, second)


@pytest.mark.parametrize("absent", ["lm_head.weight", "transformer.wte.weight"])
def test_one_of_the_tied_two_is_enough(absent):
    first, second = model(0), model(1)
    load_weights(second, {name: tensor for name, tensor in weights(first).items() if name != absent})
    assert same(first, second)


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: without(w, "transformer.ln_f.bias"), r"missing transformer.ln_f.bias$"),
        (lambda w: without(w, "lm_head.weight", "transformer.wte.weight"), r"missing transformer.wte.weight"),
        (lambda w: {}, r"missing .* and 26 more$"),
        (lambda w: w | {"extra.weight": torch.ones(2)}, r"not in the model extra.weight$"),
        (lambda w: w | {"transformer.h.1.attn.bias": torch.ones(8)}, r"not in the model .*1.attn.bias$"),
        (
            lambda w: w | {"transformer.wpe.weight": torch.ones(9, 8)},
            r"transformer.wpe.weight is \[9, 8\], the model has \[5, 8\]",
        ),
        (lambda w: w | {"lm_head.weight": torch.ones(11, 8)}, r"are tied in the model but differ"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(spoil, message):
    first, second = model(0), model(1)
    with pytest.raises(UserError, match=message) as error:
        load_weights(second, spoil(weights(first)))
    assert "\n" not in str(error.value)
    assert same(second, model(1))
