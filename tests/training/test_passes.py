"""A batch in parts, side by side or not: the same loss and gradient, and masks that no thread decides."""

import pytest
import torch

from identcli.models.gpt import GPT, GPTConfig
from identcli.training.passes import backward, forward, parts_of
from identcli.training.precision import Precision

SIZES = {"vocab_size": 11, "n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 6}
ROWS = 7
APART = Precision(torch.device("cpu"), rows_at_a_time=2, side_by_side=True)  # parts of 2, 2, 2 and 1 rows
WHOLE = Precision(torch.device("cpu"))


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def step(precision, threads=2, dropout=0.0, seed=3, rows=slice(None), dtype=torch.float64):
    """Loss and gradients of a batch, or of some of its rows, after a seed."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SIZES, dropout=dropout)).to(dtype)
    tokens, targets = torch.randint(11, (2, ROWS, 6))
    torch.manual_seed(seed)
    parameters = list(model.parameters())
    loss = backward(model, parameters, parts_of(tokens[rows], targets[rows], precision), precision)
    return loss.double(), [parameter.grad for parameter in parameters]


def apart(some, others):
    """The largest difference of two losses or gradients."""
    pairs = zip([some[0], *some[1]], [others[0], *others[1]], strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_parts_side_by_side_give_the_gradient_of_the_whole(threads):
    """In float64, to rounding of sums of some dozen numbers of order 1; the loss is summed in float32."""
    whole = step(WHOLE)
    loss, gradients = step(APART, threads)
    assert abs(loss - whole[0]) < 1e-6
    assert apart((loss, gradients), (loss, whole[1])) < 1e-14
    # The comparison can fail: with a part left out, or with parts of equal weight.
    assert apart(step(APART, threads, rows=slice(6)), whole) > 1e-3


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_two_steps_that_do_the_same_are_equal_bit_for_bit(dropout):
    runs = [step(APART, dropout=dropout, dtype=torch.float32) for _ in range(3)]
    assert apart(runs[0], runs[1]) == apart(runs[0], runs[2]) == 0


def test_masks_do_not_depend_on_the_threads_but_on_the_seed_and_the_part():
    """Four threads have a part each, two have two, three work on each part together."""
    runs = [step(APART, threads, dropout=0.2) for threads in (1, 2, 3, 4)]
    assert all(apart(runs[0], run) < 1e-6 for run in runs)
    assert apart(runs[0], step(APART, dropout=0.2, seed=4)) > 1e-3
    # Each part has masks of its own: the loss of a part twice is not twice the same.
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SIZES, dropout=0.5))
    losses = []

    def watched(inputs, targets):
        logits, loss = model(inputs, targets)
        losses.append(loss.item())
        return logits, loss

    torch.set_num_threads(2)
    row = torch.randint(11, (1, 6))
    inputs = row.expand(8, 6)
    backward(watched, list(model.parameters()), parts_of(inputs, inputs, APART), APART)
    assert len(set(losses)) == 4


def test_random_numbers_of_the_whole_process_go_on_alike_whatever_the_threads():
    def next_number(threads):
        step(APART, threads, dropout=0.2)
        return torch.rand(())

    assert len({next_number(threads).item() for threads in (1, 2, 3, 4)}) == 1


def test_evaluation_in_parts_is_that_of_the_whole():
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SIZES)).double().eval()
    tokens, targets = torch.randint(11, (2, ROWS, 6))
    whole = model(tokens, targets)[1].item()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        loss = forward(model, parts_of(tokens, targets, APART), APART)
        assert loss.item() == pytest.approx(whole, rel=1e-14)
        assert not loss.requires_grad


def test_a_failure_in_one_part_is_raised():
    def fails(inputs, targets):
        if len(inputs) == 1:
            raise ValueError("of the last part")
        return inputs, (weight * inputs).sum()

    weight = torch.nn.Parameter(torch.ones(()))
    rows = torch.ones(ROWS, 6)
    torch.set_num_threads(2)
    with pytest.raises(ValueError, match="of the last part"):
        backward(fails, [weight], parts_of(rows, rows, APART), APART)
