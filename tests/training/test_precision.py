import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.training.precision import Precision, choose_device


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="device=cuda: not available on this machine, which has cpu"):
        choose_device("cuda")


def test_auto_takes_the_best(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


def test_autocast_computes_products_in_bfloat16():
    cpu = torch.device("cpu")
    a = torch.ones(2, 2)
    with Precision(cpu, torch.bfloat16).autocast():
        assert (a @ a).dtype is torch.bfloat16
    with Precision(cpu).autocast():
        assert (a @ a).dtype is torch.float32
