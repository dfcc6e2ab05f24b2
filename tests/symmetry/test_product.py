"""The product's norm, spectrum and change against the product written out."""

import pytest
import torch

from cases import CASES, GROUPS, Case, normal
from identcli.architecture.groups import Group
from identcli.symmetry.act import Move, act, basis, move
from identcli.symmetry.pair import Pair, rotated_rows
from identcli.symmetry.product import change, spectrum, triangles

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())


def some(group: Group, seed: int = 0) -> Pair:
    return Pair(normal(2, 3, group.size, 15, seed=seed), normal(2, 3, group.size, 9, seed=seed + 1))


def element(group: Group, seed: int) -> Move:
    algebra = basis(group)
    return move(torch.einsum("k,kij->ij", normal(len(algebra), seed=seed), algebra))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_spectrum_is_that_of_the_written_out_product(case: Case) -> None:
    pair = case.pair()
    values = spectrum(triangles(pair))
    slow = torch.linalg.svdvals(pair.B.mT @ pair.A)[..., : values.shape[-1]]
    torch.testing.assert_close(values, slow, rtol=1e-11, atol=1e-12)


@every_group
def test_change_is_that_of_the_written_out_products(group: Group) -> None:
    before, after = some(group), some(group, seed=5)
    total = change(group, before, after)
    for index in [(0, 0), (1, 2)]:
        old, new = (Pair(pair.A[index], pair.B[index]) for pair in (before, after))
        changed = whole = 0.0
        for u, v, u2, v2 in (
            zip(*(rotated_rows(group, m) for m in (old.A, old.B, new.A, new.B)), strict=True) if (group.rotary) else ()
        ):
            changed += float((torch.outer(v2.conj(), u2) - torch.outer(v.conj(), u)).abs().square().sum())
            whole += float(torch.outer(v.conj(), u).abs().square().sum())
        r = group.rotary
        plain_old, plain_new = old.B[r:].mT @ old.A[r:], new.B[r:].mT @ new.A[r:]
        changed += float((plain_new - plain_old).square().sum())
        whole += float(plain_old.square().sum())
        assert total[index].item() == pytest.approx((changed / whole) ** 0.5, rel=1e-12)


@every_group
def test_moves_of_the_group_leave_it_at_rounding_and_others_do_not(group: Group) -> None:
    pair = some(group)
    # Rounding of two products, times the condition of S, which is below 100 for these seeds.
    assert change(group, pair, act(element(group, 3), pair)).max() < 1e-13
    if group.rotary:
        assert change(group, pair, act(element(Group(group.size), 3), pair)).min() > 0.01


def test_a_change_of_the_last_digits_is_seen() -> None:
    group = GROUPS["none"]
    pair = some(group)
    nudged = Pair(pair.A.clone(), pair.B)
    nudged.A[0, 0, 0, 0] *= 1 + 1e-12
    seen = change(group, pair, nudged)
    assert 1e-15 < seen[0, 0] < 1e-11
    assert seen[1].max() < 1e-15


def test_a_product_of_zero_has_no_relative_change() -> None:
    group = GROUPS["none"]
    zero = Pair(torch.zeros(6, 9, dtype=torch.float64), normal(6, 9))
    assert change(group, zero, zero).isnan()
    assert change(group, zero, some(group)._replace(A=normal(6, 9), B=normal(6, 9))).isinf()
