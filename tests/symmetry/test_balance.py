"""The balanced point against brute force: nearest of all balanced points, smallest of the orbit, same model."""

import math

import pytest
import torch
from torch import Tensor

from cases import CASES, GROUPS, Case, normal, random_roles
from identcli.architecture.groups import Group
from identcli.symmetry.act import Move, act, move
from identcli.symmetry.balance import balance
from identcli.symmetry.charge import charge, imbalance
from identcli.symmetry.pair import Pair, augmented, gather, scatter, squared_norm
from slow_attention import first_outputs, model, relative_change
from slow_symmetry import commutant, one_by_one, random_element, random_move

# QR and SVD are backward stable: 2e-16 times a few dozen operations times the condition of the product, up to
# 1e2 for these random weights.
CLOSE = 1e-11


def random_pair(*batch: int, seed: int = 0, columns: tuple[int, int] = (9, 8)) -> Pair:
    return Pair(*(normal(*batch, 6, n, seed=10 * seed + i) for i, n in enumerate(columns)))


def distance(S: Tensor, T: Tensor, pair: Pair) -> Tensor:
    """‖SA − A‖² + ‖TB − B‖² for a stack of moves."""
    return (S @ pair.A - pair.A).square().sum((-2, -1)) + (T @ pair.B - pair.B).square().sum((-2, -1))


def root(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values**power) @ vectors.T


def geometric_mean_element(pair: Pair) -> Tensor:
    """X^½ with X = P⁻¹ # Q, P = AAᵀ, Q = BBᵀ: a symmetric S that balances, by eigenvalues (theory 14)."""
    P, Q = pair.A @ pair.A.T, pair.B @ pair.B.T
    X = root(P, -0.5) @ root(root(P, 0.5) @ Q @ root(P, 0.5), 0.5) @ root(P, -0.5)
    return root((X + X.T) / 2, 0.5)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("target", ["weights", "augmented"])
def test_balancing_zeroes_the_charge_and_keeps_the_model(case: Case, target: str) -> None:
    roles = random_roles(case.attention)
    pair = gather(case.family, roles)
    chosen = augmented(case.group, pair) if target == "augmented" else pair
    (S, T), exists = balance(case.group, chosen)
    assert bool(exists.all())
    moved = act(Move(S, T), pair)
    charged = augmented(case.group, moved) if target == "augmented" else moved
    # Charges are sums of some 20 products of order 1.
    assert float(charge(case.group, charged).abs().max()) < CLOSE
    assert float(charge(case.group, chosen).abs().max()) > 0.1
    eye = torch.eye(case.group.size, dtype=S.dtype)
    torch.testing.assert_close(T.mT @ S, eye.expand_as(S), rtol=0, atol=CLOSE)
    span = commutant(case.group).flatten(1)
    assert float((S.flatten(-2) - S.flatten(-2) @ span.T @ span).abs().max()) < CLOSE
    outputs = model(case.attention, roles | scatter(case.family, moved))
    assert relative_change(outputs, first_outputs(case.attention)) < CLOSE
    if case.biased:
        left = moved._replace(a=pair.a)
        outputs = model(case.attention, roles | scatter(case.family, left))
        assert relative_change(outputs, first_outputs(case.attention)) > 1e-3
        # The two targets are two points: zero charge of the weights is not zero charge with biases.
        other = moved if target == "augmented" else augmented(case.group, moved)
        assert float(charge(case.group, Pair(other.A, other.B)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", GROUPS)
def test_a_balanced_pair_stays_where_it_is(name: str) -> None:
    pair = random_pair()
    balanced = act(balance(GROUPS[name], pair).step, pair)
    again = balance(GROUPS[name], balanced).step
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(again.S, eye, rtol=0, atol=CLOSE)
    torch.testing.assert_close(again.S_inverse_T, eye, rtol=0, atol=CLOSE)


def test_no_balanced_point_is_nearer() -> None:
    """Brute force: descend over O(D) from 60 random starts, both signs of the determinant, on D = 3.

    The balanced points are O S with S the geometric mean: found without QR, SVD or Procrustes.
    """
    pair = Pair(normal(3, 5), normal(3, 4, seed=1))
    S, T = move(geometric_mean_element(pair))
    assert float(imbalance(act(Move(S, T), pair)).abs().max()) < 1e-12
    O = torch.linalg.qr(normal(30, 3, 3, seed=2)).Q
    O = torch.cat([O, -O])
    for _ in range(600):
        gradient = (O @ S @ pair.A - pair.A) @ (S @ pair.A).mT + (O @ T @ pair.B - pair.B) @ (T @ pair.B).mT
        skew = gradient @ O.mT - O @ gradient.mT
        O = torch.linalg.matrix_exp(-0.02 * skew) @ O
    found = distance(O @ S, O @ T, pair)
    step = balance(Group(3), pair).step
    ours = float(distance(*step, pair))
    # 600 steps at that rate converge to far below 1e-8, and near a minimum an error enters squared.
    assert ours == pytest.approx(float(found.min()), rel=1e-8)
    torch.testing.assert_close(step.S, (O @ S)[found.argmin()], rtol=0, atol=1e-6)
    # Counter-examples: balanced as well, but further away.
    assert float(distance(S, T, pair)) > ours * (1 + 1e-3)
    reflected = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
    assert float(distance(reflected @ step.S, reflected @ step.S_inverse_T, pair)) > ours * (1 + 1e-3)


def test_no_point_of_the_orbit_is_smaller() -> None:
    """Brute force: descend on ‖SA‖² + ‖S⁻ᵀB‖² over GL(3); the minimum is 2 × the nuclear norm of the product."""
    pair = Pair(normal(3, 5), normal(3, 4, seed=1))
    starts = torch.linalg.matrix_exp(0.5 * normal(20, 3, 3, seed=2))
    A, B = starts @ pair.A, torch.linalg.inv(starts).mT @ pair.B
    for _ in range(400):
        # Along exp(X) the derivative is ⟨X, 2C⟩; a step against it stays on the orbit.
        C = imbalance(Pair(A, B))
        X = -0.2 * C / (A.square().sum((-2, -1)) + B.square().sum((-2, -1)))[..., None, None]
        A, B = torch.linalg.matrix_exp(X) @ A, torch.linalg.matrix_exp(-X.mT) @ B
    found = squared_norm(Pair(A, B))
    nuclear = float(torch.linalg.svdvals(pair.B.T @ pair.A).sum())
    balanced = act(balance(Group(3), pair).step, pair)
    assert float(squared_norm(balanced)) == pytest.approx(2 * nuclear, rel=1e-13)  # a dozen roundings of 2e-16
    assert float(found.min()) == pytest.approx(2 * nuclear, rel=1e-6)  # the descent's own convergence
    assert float(found.max()) == pytest.approx(2 * nuclear, rel=1e-6)
    assert float(squared_norm(pair)) > 2 * nuclear * (1 + 1e-3)


@pytest.mark.parametrize("name", GROUPS)
def test_random_points_of_the_orbit_are_larger(name: str) -> None:
    group, pair = GROUPS[name], random_pair()
    least = float(squared_norm(act(balance(group, pair).step, pair)))
    for seed in range(20):
        assert float(squared_norm(act(move(random_element(group, seed=seed)), pair))) > least


@pytest.mark.parametrize("name", ["half", "interleaved"])
def test_rotated_rows_are_scaled_and_not_turned(name: str) -> None:
    """Brute force: the scale for which the two norms agree, and of 3600 angles the nearest."""
    group, pair = GROUPS[name], random_pair()
    step, exists = balance(group, pair)
    assert bool(exists)
    rows = {"half": [(0, 3), (1, 4), (2, 5)], "interleaved": [(0, 1), (2, 3), (4, 5)]}[name]
    angles = torch.arange(3600, dtype=torch.float64) * (2 * math.pi / 3600)
    for a, b in rows:
        A, B = pair.A[[a, b]], pair.B[[a, b]]
        # ‖cA‖² = ‖B/c‖², by bisection.
        low, high = 1e-3, 1e3
        for _ in range(80):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if float((middle * A).norm()) < float((B / middle).norm()) else (low, middle)
        scale = float(step.S[a, a])
        assert scale == pytest.approx(low, rel=1e-12)
        assert float(step.S[b, b]) == scale
        turns = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], dim=1).reshape(-1, 2, 2)
        assert int(distance(scale * turns, turns / scale, Pair(A, B)).argmin()) == 0
    assert torch.equal(step.S, torch.diag(step.S.diagonal()))


def test_every_start_on_the_orbit_leads_to_the_same_point_up_to_a_turn() -> None:
    pair = random_pair()
    first = act(balance(GROUPS["none"], pair).step, pair)
    for seed in range(5):
        start = act(random_move(GROUPS["none"], pair, seed), pair)
        second = act(balance(GROUPS["none"], start).step, start)
        O = second.A @ torch.linalg.pinv(first.A)
        torch.testing.assert_close(O @ O.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=CLOSE)
        torch.testing.assert_close(O @ first.A, second.A, rtol=0, atol=CLOSE)
        torch.testing.assert_close(O @ first.B, second.B, rtol=0, atol=CLOSE)
        # Started from a turned copy, the nearest balanced point is the turned one.
        turned = act(Move(O, O), pair)
        third = act(balance(GROUPS["none"], turned).step, turned)
        torch.testing.assert_close(third.A, O @ first.A, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", ["half", "interleaved", "partial"])
def test_every_start_on_a_rotary_orbit_leads_to_the_same_norms(name: str) -> None:
    group, pair = GROUPS[name], random_pair()
    first = act(balance(group, pair).step, pair)
    for seed in range(5):
        start = act(random_move(group, pair, seed), pair)
        second = act(balance(group, start).step, start)
        for x, y in ((first.A, second.A), (first.B, second.B)):
            torch.testing.assert_close(x.T @ x, y.T @ y, rtol=0, atol=CLOSE)  # differ by an orthogonal element


def test_the_nearest_point_is_an_orthogonal_times_the_geometric_mean() -> None:
    """SᵀS = P⁻¹ # Q."""
    pair = random_pair()
    S = balance(GROUPS["none"], pair).step.S
    slow = geometric_mean_element(pair)
    # The slow one takes inverse roots of P, whose condition is the square of A's.
    torch.testing.assert_close(S.T @ S, slow @ slow, rtol=0, atol=1e-10)


def test_a_stretched_pair_is_balanced_with_its_digits() -> None:
    """No inverse is taken: S = diag(1e4 … 1e-4) before, and the charge still vanishes beside the product."""
    stretch = torch.diag(torch.logspace(4, -4, 6, dtype=torch.float64))
    pair = act(move(stretch), random_pair())
    (S, T), exists = balance(GROUPS["none"], pair)
    assert bool(exists)
    moved = act(Move(S, T), pair)
    product = pair.B.T @ pair.A
    # Rows differ by 1e8, and QR keeps 2e-16 of the largest: 1e-8 at worst.
    assert float(imbalance(moved).abs().max() / product.abs().max()) < 1e-7
    torch.testing.assert_close(moved.B.T @ moved.A, product, rtol=0, atol=1e-7)


def assert_left_alone(group: Group, pair: Pair) -> None:
    (S, T), exists = balance(group, pair)
    eye = torch.eye(group.size, dtype=pair.A.dtype).expand_as(S)
    assert not bool(exists.any())
    assert torch.equal(S, eye)
    assert torch.equal(T, eye)


def test_pairs_without_a_balanced_point_are_left_as_they_are() -> None:
    low = normal(6, 3, seed=1) @ normal(3, 9, seed=2)
    zero = torch.zeros(6, 9, dtype=torch.float64)
    full = normal(6, 9, seed=3)
    for A, B in ((low, full), (full, low), (low, low), (zero, full), (full, zero), (zero, zero)):
        assert_left_alone(GROUPS["none"], Pair(A, B))
    # A and B of full rank, but what one shows the other does not see: row 5 of B is orthogonal to all it meets.
    lone = torch.cat([torch.eye(5, 6, dtype=torch.float64), torch.zeros(1, 6, dtype=torch.float64)])
    assert_left_alone(GROUPS["none"], Pair(torch.eye(6, dtype=torch.float64), lone))
    # D > E: the product has lost rank by its shape, on either side alone.
    for columns in ((4, 4), (4, 9), (9, 4)):
        assert_left_alone(GROUPS["none"], random_pair(columns=columns))


def test_head_sizes_above_the_embedding_can_be_balanced_with_rotary_positions() -> None:
    """Each rotated pair of rows asks only for its own two norms."""
    pair = random_pair(columns=(4, 3))
    step, exists = balance(GROUPS["half"], pair)
    assert bool(exists)
    assert float(charge(GROUPS["half"], act(step, pair)).abs().max()) < CLOSE


def test_rotated_rows_that_are_zero_on_one_side_are_left_as_they_are() -> None:
    pair = random_pair()
    pair.A[[1, 4]] = 0
    (S, T), exists = balance(GROUPS["half"], pair)
    assert not bool(exists)
    assert bool(S.isfinite().all())
    assert S.diagonal()[[1, 4]].tolist() == T.diagonal()[[1, 4]].tolist() == [1, 1]
    # The other rows don't depend on them and are balanced.
    whole = balance(GROUPS["half"], random_pair()).step.S
    torch.testing.assert_close(S.diagonal()[[0, 2, 3, 5]], whole.diagonal()[[0, 2, 3, 5]], rtol=1e-14, atol=0)
    zero = torch.zeros(6, 9, dtype=torch.float64)
    for name in ("half", "interleaved", "partial"):
        assert_left_alone(GROUPS[name], Pair(zero, zero))


@pytest.mark.parametrize("name", GROUPS)
def test_a_batch_gives_what_its_pairs_give(name: str) -> None:
    """Also beside a pair that has no balanced point."""
    group, pair = GROUPS[name], random_pair(2, 3)
    pair.A[0, 1] = 0
    step, exists = balance(group, pair)
    assert exists.tolist() == [[True, False, True], [True, True, True]]
    for index, one in one_by_one(pair):
        alone = balance(group, one).step
        torch.testing.assert_close(step.S[index], alone.S, rtol=0, atol=CLOSE)
        torch.testing.assert_close(step.S_inverse_T[index], alone.S_inverse_T, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", GROUPS)
def test_float32_is_taken_as_it_is(name: str) -> None:
    group, pair = GROUPS[name], random_pair()
    single = Pair(pair.A.float(), pair.B.float())
    (S, T), exists = balance(group, single)
    assert S.dtype == T.dtype == torch.float32
    assert bool(exists)
    # 6e-8 times the condition of about 1e2 of the product.
    torch.testing.assert_close(S.double(), balance(group, pair).step.S, rtol=0, atol=1e-4)
    low = Pair(normal(6, 3).float() @ normal(3, 9, seed=1).float(), single.B)
    if not group.rotary:
        assert_left_alone(group, low)
