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
    assert type(optimizer) is kind
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(MODEL.parameters()))
    for parameter_name, parameter in MODEL.named_parameters():
        is_matrix = not parameter_name.endswith("bias") and ".ln_" not in parameter_name
        assert decay[id(parameter)] == (0.1 if is_matrix else 0.0), parameter_name


def test_unknown_optimizer():
    with pytest.raises(UserError, match=r"optimizer.name=lion: must be one of sgd, adamw"):
        build_optimizer("lion", MODEL.parameters(), lr=1.0, weight_decay=0.0)
