import subprocess
import sys

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.models.gpt import GPT, GPTConfig
from identcli.training.optimizers import build_optimizer

MODEL = GPT(GPTConfig(7, 1, 2, 8, 4))


@pytest.mark.parametrize(
    ("name", "settings", "kind"),
    [
        ("sgd", {"weight_decay": 0.1, "momentum": 0.5}, torch.optim.SGD),
        ("adamw", {"weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}, torch.optim.AdamW),
    ],
)
def test_decay_acts_on_matrices_only(name, settings, kind):
    optimizer = build_optimizer(name, MODEL.parameters(), lr=0.3, **settings)
    assert isinstance(optimizer, kind)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(MODEL.parameters()))
    for parameter_name, parameter in MODEL.named_parameters():
        is_matrix = not parameter_name.endswith("bias") and ".ln_" not in parameter_name
        assert decay[id(parameter)] == (0.1 if is_matrix else 0.0), parameter_name


def test_unknown_optimizer():
    with pytest.raises(UserError, match=r"optimizer.name=lion: must be one of sgd, adamw"):
        build_optimizer("lion", MODEL.parameters(), lr=1.0, weight_decay=0.0)


BUILT = """
import sys, torch
from identcli.training.optimizers import build_optimizer
weight = torch.nn.Parameter(torch.ones(2, 2))
for name, settings in (("sgd", {"momentum": 0.0}), ("adamw", {"betas": (0.9, 0.99), "eps": 1e-8})):
    optimizer = build_optimizer(name, [weight], 0.1, weight_decay=0.1, **settings)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
assert weight[0, 0] < 1
assert "torch._dynamo" not in sys.modules, "imported"
"""


def test_no_optimizer_imports_torchs_compiler():
    """It takes as long as importing torch."""
    done = subprocess.run([sys.executable, "-c", BUILT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["sgd", "sgd with momentum", "adamw"])
def test_updates_are_those_of_torchs_own_class_bit_for_bit(name):
    settings = {"adamw": {"betas": (0.9, 0.99), "eps": 1e-8}}.get(name, {"momentum": 0.9 * ("momentum" in name)})
    own_class = torch.optim.AdamW if name == "adamw" else torch.optim.SGD
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(2)]
    ours = build_optimizer(name.split()[0], weights[:1], 0.1, weight_decay=0.1, **settings)
    theirs = own_class(weights[1:], lr=0.1, weight_decay=0.1, fused=not settings.get("momentum"), **settings)
    assert isinstance(ours, own_class)
    for step in range(5):
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            (weight.sin() * step).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert not optimizer.state.get(weight, {}).get("exp_avg", weight.detach()).requires_grad
        assert torch.equal(*weights)
    for key, value in theirs.state_dict()["state"].get(0, {}).items():
        assert torch.equal(torch.as_tensor(ours.state_dict()["state"][0][key]), torch.as_tensor(value)), key
