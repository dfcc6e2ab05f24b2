import itertools

import numpy as np
import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.data.batches import Batches, draw_starts


def counting(train: int = 500, val: int = 100) -> dict[str, torch.Tensor]:
    """Tokens that are their own places, so that a row shows where it was taken."""
    return {"train": torch.arange(train), "val": 1000 + torch.arange(val)}


def batches(seed: int = 7, block_size: int = 8, batch_size: int = 4, **sizes: int) -> Batches:
    return Batches(counting(**sizes), block_size, batch_size, seed)


def test_rows_are_windows_and_targets_the_same_one_token_later():
    x, y = batches().batch(3)
    assert x.shape == y.shape == (4, 8)
    assert torch.equal(x, x[:, :1] + torch.arange(8))
    assert torch.equal(y, x + 1)
    assert x.is_contiguous()
    assert y.is_contiguous()


def test_a_batch_depends_on_seed_step_and_micro_and_on_nothing_else():
    grid = list(itertools.product([7, 8], [0, 1, 2, 1000, 10**12], [0, 1]))
    forward = {point: batches(point[0]).batch(*point[1:])[0].tolist() for point in grid}
    one = {seed: batches(seed) for seed in (7, 8)}
    for seed, step, micro in reversed(grid):  # another order, one object, evaluation in between
        list(one[seed].eval_batches("val", 2))
        torch.manual_seed(step)
        np.random.seed(micro)
        assert one[seed].batch(step, micro)[0].tolist() == forward[seed, step, micro]
    assert len({str(rows) for rows in forward.values()}) == len(grid)


def test_a_larger_batch_begins_with_the_smaller_one():
    assert torch.equal(batches(batch_size=9).batch(5)[0][:4], batches(batch_size=4).batch(5)[0])


def test_the_starts_are_those_of_every_machine():
    # Computed once; Philox and integer arithmetic leave no room for another answer.
    assert draw_starts(1_003_790, 4, (1337, 0), step=0).tolist() == [923101, 988132, 113418, 829868]


def test_the_draws_follow_the_definition_of_philox():
    """A slow twin: Philox 4x64 with ten rounds in Python's integers."""
    mask = 2**64 - 1

    def philox(counter: list[int], key: list[int]) -> list[int]:
        a, b, c, d = counter
        for _ in range(10):
            low, high = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = (high >> 64) ^ b ^ key[0], high & mask, (low >> 64) ^ d ^ key[1], low & mask
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        return [a, b, c, d]

    for step, micro in [(0, 0), (3, 1), (500, 0)]:
        # The generator counts up before it draws: four draws from the counter 1, the next four from 2.
        draws = philox([1, micro, step, 0], [1337, 2]) + philox([2, micro, step, 0], [1337, 2])
        expected = [(draw >> 32) * 1000 >> 32 for draw in draws]
        assert draw_starts(1000, 8, (1337, 2), step, micro).tolist() == expected


def test_starts_cover_every_window_evenly_the_last_one_too():
    made = batches(block_size=8, batch_size=50, train=18)
    starts = torch.cat([made.batch(step)[0][:, 0] for step in range(200)])
    counts = torch.bincount(starts)
    assert len(counts) == 18 - 8  # the last window's target is the last token
    # 10,000 draws over 10 starts: 1,000 each, standard deviation 30; five of those.
    assert (counts - 1000).abs().max() < 150


def test_one_token_more_than_a_block_gives_the_one_window():
    made = batches(block_size=8, train=9, val=9)
    x, y = made.batch(0)
    assert torch.equal(x, torch.arange(8).expand(4, 8))
    assert torch.equal(y, torch.arange(1, 9).expand(4, 8))


@pytest.mark.parametrize(("split", "length"), [("train", 8), ("val", 8), ("val", 0)])
def test_a_part_shorter_than_a_window_is_refused(split, length):
    message = rf"the {split} part of the data has {length} tokens: .*block_size=8, which needs at least 9 tokens"
    with pytest.raises(UserError, match=message):
        batches(**{split: length})


def test_evaluation_is_on_the_same_windows_for_every_step_seed_and_batch_size():
    first = [x.tolist() for x, _ in batches(seed=7).eval_batches("val", 6)]
    made = batches(seed=8)
    made.batch(3)
    assert [x.tolist() for x, _ in made.eval_batches("val", 6)] == first
    assert [x.tolist() for x, _ in made.eval_batches("val", 2)] == first[:2]
    rows = torch.cat([x for x, _ in batches(batch_size=8).eval_batches("val", 3)])
    assert rows.tolist() == [row for batch in first for row in batch]
    assert all(torch.equal(y, x + 1) for x, y in made.eval_batches("val", 6))
    assert min(map(min, rows.tolist())) >= 1000
    assert max(x.max() for x, _ in made.eval_batches("train", 6)) < 1000


def test_the_evaluation_windows_of_training_data_are_no_training_batches():
    made = batches(seed=0)
    evaluated = [x.tolist() for x, _ in made.eval_batches("train", 6)]
    assert not any(made.batch(step)[0].tolist() in evaluated for step in range(6))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"seed": -1}, r"seed=-1"), ({"seed": 2**64}, r"seed=1844"), ({"batch_size": 0}, r"batch_size=0")],
)
def test_impossible_batches_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        batches(**wrong)
