"""An update whose gradient is recorded once and replayed is the update that computes it each time."""

from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.models.gpt import GPT, GPTConfig
from identcli.training import graph
from identcli.training.graph import Captured, require_capturable
from identcli.training.loop import Plan, train
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision

SIZES = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=16, block_size=8, dropout=0.2)
OPTIMIZERS = {
    "sgd": {"name": "sgd", "weight_decay": 1e-2, "momentum": 0.0},
    "adamw": {"name": "adamw", "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8},
}


def played_back(run):
    """A recording on the CPU: runs as often before the first replay as a real one, and draws nothing for good."""
    with torch.random.fork_rng([]):
        for _ in range(graph.WARM_UPS + 1):
            run()
    return run


class Diary:
    def __init__(self):
        self.rows = []

    def updated(self, *row):
        self.rows.append(row)

    def rebalance(self, state): ...
    def evaluated(self, state, losses): ...
    def checkpoint(self, state): ...


def go(optimizer, device="cpu", steps=6, **options):
    """Losses, learning rates and norms of a few updates of two micro-batches each, and the weights after them."""
    torch.manual_seed(0)
    model, diary = GPT(SIZES).to(device), Diary()
    stepper = build_optimizer(parameters=model.parameters(), lr=0.1, **OPTIMIZERS[optimizer])

    def batch(step, micro):
        drawn = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(10 * step + micro)).to(device)
        return drawn[:, :-1], drawn[:, 1:]

    plan, precision = Plan(steps, grad_accum=2), Precision(torch.device(device))
    # Another learning rate at each step: one that was recorded would show.
    train(model, stepper, batch, lambda step: 0.1 / (1 + step), plan, precision, {"a": [batch(0, 0)]}, diary, **options)
    return diary.rows, {name: value.detach().cpu() for name, value in model.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recording_changes_no_number(optimizer):
    rows, weights = go(optimizer)
    recorded_rows, recorded_weights = go(optimizer, record=lambda gradient: Captured(gradient, played_back))
    assert recorded_rows == rows
    assert all(torch.equal(recorded_weights[name], weights[name]) for name in weights)


def test_random_numbers_drawn_while_recording_would_show():
    """The counter-example: dropout makes the test above able to fail."""

    def careless(run):
        run()
        return run

    assert go("sgd", record=lambda gradient: Captured(gradient, careless))[0] != go("sgd")[0]


def test_inputs_go_through_fixed_memory_and_answers_are_copies():
    seen = []

    def gradient(micro_batches):
        seen.append([rows.data_ptr() for pair in micro_batches for rows in pair])
        return torch.stack([x.sum() + y.sum() for x, y in micro_batches])

    captured = Captured(gradient, played_back)
    first = captured([(torch.ones(3), torch.ones(3))])
    second = captured([(torch.full((3,), 2.0), torch.ones(3))])
    assert (first.tolist(), second.tolist()) == ([6.0], [9.0])
    assert len(seen) == graph.WARM_UPS + 1 + 2
    assert len({str(addresses) for addresses in seen}) == 1


def test_other_shapes_than_the_recorded_are_refused():
    captured = Captured(lambda micro_batches: micro_batches[0][0].sum(), played_back)
    captured([(torch.ones(4, 8), torch.ones(4, 8))])
    with pytest.raises(RuntimeError, match="must match"):
        captured([(torch.ones(3, 8), torch.ones(3, 8))])
    with pytest.raises(ValueError, match="argument"):
        captured([(torch.ones(4, 8), torch.ones(4, 8))] * 2)


def test_what_cannot_be_recorded_is_refused():
    require_capturable(torch.device("cuda"), 1)
    with pytest.raises(UserError, match="^cuda_graph=true: needs device=cuda, and this run is on mps$"):
        require_capturable(torch.device("mps"), 1)
    with pytest.raises(UserError, match="^cuda_graph=true: a run shared out over 2 processes can't be recorded$"):
        require_capturable(torch.device("cuda"), 2)


def test_the_recording_warms_up_on_its_own_stream_and_puts_the_random_numbers_back(monkeypatch):
    """The calls to torch.cuda, in their order, on a machine without it."""
    happened = []
    cuda = MagicMock()
    cuda.current_device.return_value = 0
    cuda.stream.side_effect = lambda stream: noted(happened, "stream", stream)
    cuda.graph.side_effect = lambda recorded, stream: noted(happened, "graph", stream)
    monkeypatch.setattr(graph.torch, "cuda", cuda)
    monkeypatch.setattr(graph.torch.random, "fork_rng", lambda devices: noted(happened, "random numbers", devices))
    replay = graph.cuda_graph(lambda: happened.append("run"))
    own = cuda.Stream.return_value
    warming = [("stream", own), *["run"] * graph.WARM_UPS, "stream over"]
    recording = [("graph", own), "run", "graph over"]
    assert happened == [("random numbers", [0]), *warming, *recording, "random numbers over"]
    assert replay == cuda.CUDAGraph.return_value.replay


@contextmanager
def noted(happened, name, what):
    happened.append((name, what))
    yield
    happened.append(f"{name} over")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records a CUDA graph: needs a CUDA device")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_cuda_graph_trains_as_without(optimizer):
    rows, weights = go(optimizer, device="cuda", steps=40)
    recorded_rows, recorded_weights = go(optimizer, device="cuda", steps=40, record=Captured)
    # The same kernels on the same numbers; some add up in an order that isn't fixed: 1e-7 at each step.
    torch.testing.assert_close(torch.tensor(recorded_rows), torch.tensor(rows), rtol=1e-4, atol=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(recorded_weights[name], value, rtol=1e-3, atol=1e-3)
