import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.training.precision import LARGEST_BLOCK, Precision, choose_device, rows_at_a_time


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


def test_a_batch_passes_in_equal_parts_that_stay_below_the_largest_block():
    cpu, paper = torch.device("cpu"), 4 * 384 * 256
    assert rows_at_a_time(cpu, 64, paper) == 16
    assert 4 * paper * 16 <= LARGEST_BLOCK < 4 * paper * 22
    assert rows_at_a_time(cpu, 12, 4 * 384 * 64) == 12
    assert rows_at_a_time(cpu, 5, LARGEST_BLOCK) == 1
    assert rows_at_a_time(torch.device("cuda"), 64, paper) is None
    rows = torch.arange(5)
    parts = list(Precision(cpu, rows_at_a_time=2).passes(rows, rows + 1))
    assert [(some.tolist(), of_some.tolist(), share) for some, of_some, share in parts] == [
        ([0, 1], [1, 2], 0.4),
        ([2, 3], [3, 4], 0.4),
        ([4], [5], 0.2),
    ]
