"""The order of events, accumulation, and the stop at the first value that is not finite."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from identcli.training.loop import MOST_AHEAD, Arriving, Diverged, Plan, _report, evaluate, train
from identcli.training.precision import Precision

CPU = Precision(torch.device("cpu"))


class Line(nn.Module):
    """y = w·x, squared loss."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[2.0]]))

    def forward(self, inputs, targets):
        outputs = inputs @ self.w
        return outputs, (outputs - targets).square().mean()


class Diary:
    def __init__(self):
        self.lines = []

    def updated(self, step, loss, lr, grad_norm):
        self.lines.append(("updated", step))
        self.last = (loss, lr, grad_norm)

    def rebalance(self, state):
        self.lines.append(("rebalance", state))

    def evaluated(self, state, losses):
        self.lines.append(("evaluated", state))

    def checkpoint(self, state):
        self.lines.append(("checkpoint", state))


def data(step, micro):
    x = torch.full((1, 1), 1.0 + micro)
    return x, torch.zeros(1, 1)


def go(plan, batch=data, lr=0.01, start=0):
    model, diary = Line(), Diary()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train(model, optimizer, batch, lambda step: lr, plan, CPU, {"val": [data(0, 0)]}, diary, start)
    return model, diary


def test_what_is_due_happens_after_its_update_in_this_order():
    _, diary = go(Plan(steps=5, rebalance_every=2, eval_every=2, checkpoint_every=4))
    assert diary.lines == [
        ("evaluated", 0),
        ("updated", 0),
        ("updated", 1),
        ("rebalance", 2),
        ("evaluated", 2),
        ("updated", 2),
        ("updated", 3),
        ("rebalance", 4),
        ("evaluated", 4),
        ("checkpoint", 4),
        ("updated", 4),
        ("evaluated", 5),
        ("checkpoint", 5),
    ]


def test_never_means_never():
    _, diary = go(Plan(steps=3))
    assert diary.lines == [("evaluated", 0), ("updated", 0), ("updated", 1), ("updated", 2), ("evaluated", 3)]


def test_a_later_start_goes_on_from_there():
    _, diary = go(Plan(steps=3), start=2)
    assert diary.lines == [("updated", 2), ("evaluated", 3)]


def test_a_batch_in_parts_gives_the_gradient_and_the_losses_of_the_whole():
    """Parts of 2, 2 and 1 rows in float64: equal but for the order of a sum. Parts of equal weight would not be."""
    torch.manual_seed(0)
    rows, zeros = torch.randn(5, 1, dtype=torch.float64), torch.zeros(5, 1, dtype=torch.float64)
    results = []
    for precision in (CPU, Precision(torch.device("cpu"), rows_at_a_time=2)):
        model, diary = Line().double(), Diary()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        train(model, optimizer, lambda *_: (rows, zeros), lambda step: 0.01, Plan(1, 3, 0.0), precision, {}, diary)
        results.append([model.w.item(), *diary.last, evaluate(model, {"val": [(rows, zeros)]}, precision)["val"]])
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-15, abs=0)
    assert results[0] == pytest.approx(results[1], rel=2e-7)  # the reported loss is a float32
    by_part = torch.stack([part.square().mean() for part in rows.split(2)]).mean()
    assert abs(by_part / rows.square().mean() - 1) > 1e-2


def test_micro_batches_add_up_to_the_mean_gradient():
    # Losses (w·1)² and (w·2)²: mean gradient (2·w·1 + 2·w·4)/2 = 5w = 10, step 0.01·10.
    model, diary = go(Plan(steps=1, grad_accum=2, clip=0.0))
    assert model.w.item() == pytest.approx(2.0 - 0.1)
    loss, lr, grad_norm = diary.last
    assert (loss, lr, grad_norm) == (pytest.approx((4 + 16) / 2), 0.01, pytest.approx(10.0))


def test_clipping_bounds_the_step_and_reports_the_norm_before():
    model, diary = go(Plan(steps=1, clip=1.0))
    assert model.w.item() == pytest.approx(2.0 - 0.01, abs=1e-6)
    assert diary.last[2] == pytest.approx(4.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_update(bad):
    def batch(step, micro):
        x, y = data(step, micro)
        return (x * bad, y) if step == 2 else (x, y)

    model, diary = Line(), Diary()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plan = Plan(steps=9, checkpoint_every=1)
    with pytest.raises(Diverged, match="diverged at step 2: the loss is (nan|inf)") as caught:
        train(model, optimizer, batch, lambda step: 0.01, plan, CPU, {"val": [data(0, 0)]}, diary)
    assert caught.value.step == 2
    assert torch.isfinite(model.w).all()
    assert diary.lines[-1] == ("checkpoint", 2)


def test_a_gradient_that_is_not_finite_stops_too():
    class Root(Line):
        def forward(self, inputs, targets):
            return inputs, (self.w * 0).abs().sqrt().sum()  # value 0, gradient 0·∞

    model, diary = Root(), Diary()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(Diverged, match="the gradient norm is nan"):
        train(model, optimizer, data, lambda step: 0.01, Plan(steps=2), CPU, {"val": [data(0, 0)]}, diary)


class OnCuda(torch.Tensor):
    """Numbers that say they are on CUDA; a copy of them is on the host."""

    is_cuda = True

    def to(self, *where, **how):
        assert (where, how) == (("cpu",), {"non_blocking": True})
        return self.as_subclass(torch.Tensor)


class Event:
    """Stands in for torch.cuda.Event and remembers what was waited for."""

    waited: ClassVar[list] = []

    def __init__(self, blocking):
        pass

    def record(self):
        pass

    def synchronize(self):
        self.waited.append(self)


def test_on_a_gpu_the_host_runs_ahead_and_reports_every_update_in_order(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    diary = Diary()
    values = [torch.tensor([float(step), 1.0]).as_subclass(OnCuda) for step in range(MOST_AHEAD)]
    pending = [(step, 0.1, Arriving(each)) for step, each in enumerate(values)]
    assert Event.waited == []
    _report(pending, diary, leaving=MOST_AHEAD // 2)
    assert diary.lines == [("updated", step) for step in range(MOST_AHEAD // 2)]
    assert len(Event.waited) == MOST_AHEAD // 2
    _report(pending, diary)
    assert diary.lines == [("updated", step) for step in range(MOST_AHEAD)]
    assert diary.last == (MOST_AHEAD - 1.0, 0.1, 1.0)


def test_evaluation_restores_the_mode_and_weighs_batches_alike():
    model = Line().train()
    losses = evaluate(model, {"a": [data(0, 0), data(0, 1)], "b": [data(0, 0)]}, CPU)
    assert losses == {"a": pytest.approx((4 + 16) / 2), "b": pytest.approx(4.0)}
    assert model.training
