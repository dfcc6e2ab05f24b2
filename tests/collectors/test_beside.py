"""Measuring beside training gives the rows of measuring at once, in the same order, and changes nothing else."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from identcli.collectors import attach, every
from identcli.collectors.beside import MOST_WAITING, Beside, Departing
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.runs.resume import resume
from identcli.runs.train import run
from identcli.symmetry.pair import Pair
from identcli.training.optimizers import build_optimizer
from small_run import ADAMW, config, same

CONFIG = GPTConfig(vocab_size=11, n_layer=2, n_head=2, n_embd=12, block_size=8)


def rows(beside, device="cpu", steps=9, poison=None):
    """What a sink hears while a model trains, and in which thread; `poison`: the step that makes weights infinite."""
    torch.manual_seed(3)
    model = GPT(CONFIG).to(device)
    optimizer = build_optimizer("sgd", model.parameters(), lr=0.1, weight_decay=0.1)
    heard, threads = [], set()

    def sink(table, step, columns):
        heard.append((table, step, columns))
        threads.add(threading.current_thread())

    options = {"circuits": ["qk", "ov"], "when": every(2), "sink": sink, "beside": beside}
    with attach(optimizer, model.named_parameters(), nanogpt(CONFIG.attention), **options):
        for step in range(steps):
            tokens = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(step)).to(device)
            model.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:])[1].backward()
            if step == poison:
                for block in model.transformer.h:
                    block.attn.c_attn.weight.grad[:, 3] = torch.inf
            optimizer.step()
    assert threads == {threading.current_thread()}
    return heard


def same_rows(one, two, **tolerance):
    assert [row[:2] for row in one] == [row[:2] for row in two]
    for (_, _, columns), (_, _, others) in zip(one, two, strict=True):
        assert columns.keys() == others.keys()
        for name, values in columns.items():
            if tolerance and isinstance(values, np.ndarray):
                np.testing.assert_allclose(values, others[name], err_msg=name, **tolerance)
            else:
                assert np.array_equal(values, others[name], equal_nan=isinstance(values, np.ndarray)), name


def test_rows_are_those_of_measuring_at_once():
    at_once = rows(beside=False)
    assert len(at_once) == 5 * 3  # steps 0, 2, … 8: heads of qk and of ov, biases
    same_rows(rows(beside=True), at_once)


@pytest.mark.parametrize("beside", [True, False])
def test_weights_that_are_not_finite_give_no_rows(beside):
    """On a GPU the loop notices some steps late; it must then say `diverged`, not fail in an eigenvalue."""
    assert {step for _, step, _ in rows(beside, poison=4)} == {0, 2}


def test_a_run_is_the_same_run_and_resumes_as_it(tmp_path, monkeypatch):
    def settings(**more):
        moving, often = {"mode": "on", "every": 5}, {"every": 6}
        return config(
            steps=12, optimizer=ADAMW, lr=1e-2, collect={"every": 1}, rebalance=moving, checkpoint=often, **more
        )

    for name in ("at_once", "beside"):
        (tmp_path / name).mkdir()
    run(settings(), tmp_path / "at_once", [], live=False)
    monkeypatch.setattr("identcli.runs.session.attach", partial(attach, beside=True))
    assert run(settings(stop_at=7), tmp_path / "beside", [], live=False).step == 7
    assert resume(tmp_path / "beside", {}, [], live=False).state == "finished"
    same(tmp_path / "at_once", tmp_path / "beside", 12)


def test_results_come_in_order_and_few_wait():
    got = []
    beside = Beside(got.append)
    for number in range(20):
        beside.submit(lambda number=number: time.sleep(0.002 * (number % 3)) or number)
        assert number + 1 - len(got) <= MOST_WAITING
    beside.close()
    assert got == list(range(20))


def test_what_the_work_raises_is_raised_where_it_was_given():
    got = []
    beside = Beside(got.append)

    def give_all():
        for number in (6, 0, 2):
            beside.submit(lambda number=number: 6 // number)
        beside.flush()

    with pytest.raises(ZeroDivisionError):
        give_all()
    beside.close()
    assert got == [1]


def test_a_failed_measurement_fails_the_run(tmp_path, monkeypatch):
    def broken(step):
        raise torch.linalg.LinAlgError("no convergence")

    monkeypatch.setattr("identcli.runs.session.attach", partial(attach, beside=True))
    monkeypatch.setattr("identcli.collectors.hook.MEASUREMENTS", (broken,))
    outcome = run(config(), tmp_path, [], live=False)
    assert (outcome.state, outcome.error) == ("failed", "_LinAlgError: no convergence")


class OnCuda(torch.Tensor):
    """Numbers that say they are on CUDA; a copy of them is on the host."""

    is_cuda = True

    def to(self, *where, **how):
        assert (where, how) == (("cpu",), {"non_blocking": True})
        return self.as_subclass(torch.Tensor)


def test_a_pair_leaves_a_gpu_at_once_and_is_waited_for_only_when_wanted(monkeypatch):
    happened = []

    class Event:
        def __init__(self, blocking):
            assert blocking  # the thread that waits shall not take a core meanwhile

        def record(self):
            happened.append("recorded")

        def synchronize(self):
            happened.append("waited")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    A, B = (torch.randn(2, 3, 4, dtype=torch.bfloat16).as_subclass(OnCuda) for _ in range(2))
    departing = Departing(Pair(A, B, None, None))
    assert happened == ["recorded"]
    arrived = departing.arrived()
    assert happened == ["recorded", "waited"]
    assert torch.equal(arrived.A, A.as_subclass(torch.Tensor))
    assert arrived.A.dtype is arrived.B.dtype is torch.bfloat16
    assert arrived.a is arrived.b is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a model on a GPU: needs a CUDA device")
def test_rows_of_a_gpu_are_those_of_its_own_float64():
    # The same weights measured by two libraries: float64 rounding times the condition, and shares relative to 1.
    same_rows(rows(beside=True, device="cuda"), rows(beside=False, device="cuda"), rtol=1e-6, atol=1e-10)
