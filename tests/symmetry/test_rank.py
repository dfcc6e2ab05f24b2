"""The numerical rank: right where there is a gap, silent where there is none."""

import pytest
import torch

from identcli.symmetry.rank import equilibrated, numerical_rank


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rank", [1, 4, 9, 12])
def test_rank_of_a_product_is_its_inner_size(rank: int) -> None:
    found = numerical_rank(random(40, rank) @ random(rank, 12, seed=1))
    assert (found.rank, found.nullity, found.decided) == (rank, 12 - rank, True)
    assert found.gap == pytest.approx(found.last / found.first)
    # Condition of a random product is a few hundred: at least 1e-3 against noise of 1e-15.
    assert found.gap > 1e9


def test_units_do_not_hide_the_gap() -> None:
    """Scales over 9 orders of magnitude, as a bias beside an embedding may have."""
    product = random(40, 9) @ random(9, 12, seed=1)
    scales = torch.logspace(-9, 0, 12, dtype=torch.float64)
    found = numerical_rank(product * scales)
    assert (found.rank, found.decided) == (9, True)


def test_a_column_of_rounding_noise_stays_noise() -> None:
    """The trap: a key bias has a derivative of 1e-16, which equilibration must not turn into rank."""
    jacobian = torch.cat([random(30, 5), 1e-16 * random(30, 3, seed=1)], dim=1)
    found = numerical_rank(jacobian)
    assert (found.rank, found.nullity, found.decided) == (5, 3, True)
    # The counter-example: scaled to norm 1 like the others, the three columns would count.
    assert numerical_rank(jacobian / jacobian.norm(dim=0)).rank == 8
    assert float(equilibrated(jacobian)[:, 5:].norm()) < 1e-14


def test_exact_zero_columns_beside_noise_make_no_gap() -> None:
    jacobian = torch.cat([random(30, 5), 1e-15 * random(30, 1, seed=1), torch.zeros(30, 2, dtype=torch.float64)], dim=1)
    assert numerical_rank(jacobian).rank == 5


def test_refuses_where_the_spectrum_has_no_gap() -> None:
    left, right = torch.linalg.qr(random(30, 20)).Q, torch.linalg.qr(random(20, 20, seed=1)).Q
    smooth = left @ torch.diag(torch.logspace(0, -15, 20, dtype=torch.float64)) @ right.T
    assert not numerical_rank(smooth).decided


def test_refuses_a_gap_above_the_noise() -> None:
    """1e-6 is small, but no rounding error: such a direction moves the model."""
    left, right = torch.linalg.qr(random(30, 6)).Q, torch.linalg.qr(random(6, 6, seed=1)).Q
    scales = torch.tensor([1.0, 0.9, 1e-6, 1e-8, 1e-10, 1e-12], dtype=torch.float64)
    found = numerical_rank(left @ torch.diag(scales) @ right.T)
    assert found.first > 1e-9
    assert not found.decided


def test_refuses_when_there_are_too_few_outputs() -> None:
    found = numerical_rank(random(6, 10))
    assert (found.rank, found.decided) == (6, False)


def test_full_rank_and_zero() -> None:
    full = numerical_rank(random(30, 6))
    assert (full.rank, full.nullity, full.decided) == (6, 0, True)
    assert full.first == torch.finfo(torch.float64).eps
    none = numerical_rank(torch.zeros(4, 3, dtype=torch.float64))
    assert (none.rank, none.nullity, none.decided) == (0, 3, True)


def test_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="float64 matrix"):
        numerical_rank(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="not finite"):
        numerical_rank(torch.full((2, 2), float("nan"), dtype=torch.float64))
