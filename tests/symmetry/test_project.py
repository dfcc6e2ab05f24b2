"""The projection against dense least squares, against a Jacobian's null space, and against true gradients."""

import pytest
import torch
from torch import Tensor

from cases import CASES, GROUPS, Case, normal
from identcli.architecture.groups import Group
from identcli.symmetry.act import act
from identcli.symmetry.charge import grams
from identcli.symmetry.pair import Pair, augmented, gather, squared_norm
from identcli.symmetry.project import (
    WORTH_SHARING,
    project,
    spectra,
    unidentified_share,
    unidentified_share_with_biases,
    unidentified_shares,
)
from identcli.symmetry.tangent import tangent
from slow_attention import first_gradient, rotation
from slow_symmetry import (
    commutant,
    flat,
    last_of,
    least_squares,
    null_directions,
    one_by_one,
    random_algebra,
    random_move,
)

# Random weights of these sizes give sums of eigenvalues between 0.1 and 10, a condition of at most 1e3 for the
# squared problem; times 2e-16 and some dozen roundings.
CLOSE = 1e-11
# A share that is zero: its amplitude is rounding, 2e-16 times that condition, so the square is 1e-28.
ZERO = 1e-28


def random_update(pair: Pair, seed: int = 9) -> Pair:
    parts = (None if part is None else normal(*part.shape, seed=seed + i) for i, part in enumerate(pair))
    return Pair(*parts)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_projection_is_the_least_squares_one(case: Case) -> None:
    pair, update = case.pair(), random_update(case.pair())
    weights, moved = Pair(pair.A, pair.B), Pair(update.A, update.B)
    X, energy = project(case.group, weights, moved)
    share, span = unidentified_share(case.group, pair, update), commutant(case.group).flatten(1)
    one, d = last_of(weights), flat(last_of(moved))
    slow = least_squares(null_directions(case.group, one), d)
    torch.testing.assert_close(flat(tangent(X[-1, -1], one)), slow, rtol=0, atol=CLOSE)
    assert float(energy[-1, -1]) == pytest.approx(float(slow @ slow), rel=CLOSE)
    assert float(share[-1, -1]) == pytest.approx(float(slow @ slow / (d @ d)), rel=CLOSE)
    outside = X.flatten(-2) - X.flatten(-2) @ span.T @ span
    assert float(outside.abs().max()) < CLOSE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_shares_at_once_are_the_two(case: Case) -> None:
    """The short way by Sherman, Morrison and Woodbury against a spectrum of the augmented pair."""
    pair, update = case.pair(), random_update(case.pair())
    plain, biased = unidentified_shares(case.group, pair, update, None if case.group.rotary else spectra(pair))
    torch.testing.assert_close(plain, unidentified_share(case.group, pair, update), rtol=CLOSE, atol=0)
    torch.testing.assert_close(biased, unidentified_share_with_biases(case.group, pair, update), rtol=CLOSE, atol=0)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_both_shares_at_once_with_several_query_biases(columns: int) -> None:
    """As many columns as heads share a key; the short way is taken up to a quarter of D."""
    group = Group(12)
    pair = Pair(normal(2, 12, 20, seed=1), normal(2, 12, 20, seed=2), normal(2, 12, columns, seed=3))
    update = random_update(pair)
    _, biased = unidentified_shares(group, pair, update)
    torch.testing.assert_close(biased, unidentified_share_with_biases(group, pair, update), rtol=CLOSE, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-9, 0.0])
def test_both_shares_at_once_where_the_pair_is_nearly_of_lower_rank(scale: float) -> None:
    """A row of A and of B shrunk by `scale`, a bias along it: then only the bias keeps that direction alive, and below
    a condition of 1e-8 the short way would lose digits, so it is not taken. A zero share stays one."""
    group = Group(6)
    pair = Pair(normal(3, 2, 6, 24, seed=1), normal(3, 2, 6, 24, seed=2), normal(3, 2, 6, 1, seed=3))
    pair.A[..., 0, :] *= scale
    pair.B[..., 0, :] *= scale
    update = random_update(pair)
    _, biased = unidentified_shares(group, pair, update)
    slow = unidentified_share_with_biases(group, pair, update)
    # R and the weight of a direction shrink together: 1e-16 of the largest over the square of 1e-3 leaves 1e-10.
    torch.testing.assert_close(biased, slow, rtol=1e-9, atol=0)
    X = normal(3, 2, 6, 6, seed=4)
    null = Pair(X @ pair.A, -X.mT @ pair.B, X @ pair.a)
    torch.testing.assert_close(unidentified_shares(group, pair, null)[1], torch.ones(3, 2).double(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("pairs", [3, WORTH_SHARING // (2 * 32 * 32) + 1])
def test_spectra_in_threads_are_those_of_one_pair_after_the_other(pairs: int) -> None:
    """Few of them in the thread that asks, more in as many as torch has; a number that the threads don't divide."""
    pair, threads = Pair(normal(pairs, 1, 32, 40), normal(pairs, 1, 32, 40, seed=1)), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = spectra(pair)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    for some in range(pairs):
        for gram, values, vectors in zip(
            grams(pair.layers(slice(some, some + 1))), found[::2], found[1::2], strict=True
        ):
            # A few roundings of a matrix of norm 1e2.
            torch.testing.assert_close(
                vectors[some] * values[some].unsqueeze(-2) @ vectors[some].mT, gram[0], rtol=0, atol=1e-11
            )
            torch.testing.assert_close(values[some], torch.linalg.eigvalsh(gram[0]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("case", [c for c in CASES if c.biased], ids=str)
def test_with_biases_the_share_is_that_of_all_null_directions(case: Case) -> None:
    """Weights and biases moving together, and free key-bias rows: one least-squares problem over all of them."""
    pair, update = case.pair(), random_update(case.pair())
    share = unidentified_share_with_biases(case.group, pair, update)
    d = flat(last_of(update))
    slow = least_squares(null_directions(case.group, last_of(pair)), d)
    assert float(share[-1, -1]) == pytest.approx(float(slow @ slow / (d @ d)), rel=CLOSE)
    assert float((share - unidentified_share(case.group, pair, update)).abs().min()) > 1e-4


def attention_scores(group: Group, width: int, count: int = 12) -> tuple[Tensor, list[Tensor]]:
    """Random inputs and rotations for `scores_seen_by_the_softmax`."""
    xs = normal(count, 5, width, seed=21)
    return xs, [rotation(group.size, t, group.rotary, group.style) for t in (0, 1, 3, 6, 10)]


def scores_seen_by_the_softmax(parameters: Tensor, shapes: list[torch.Size], xs: Tensor, turns: list[Tensor]) -> Tensor:
    """Log-probabilities of one head at the last of 5 positions, for each input: all that a softmax lets through."""
    A, B, a, b = (p.reshape(s) for p, s in zip(parameters.split([s.numel() for s in shapes]), shapes, strict=True))
    rotations = torch.stack(turns)
    queries = torch.einsum("tij,ntj->nti", rotations, xs @ A.T + a[:, 0])
    keys = torch.einsum("tij,ntj->nti", rotations, xs @ B.T + b[:, 0])
    scores = torch.einsum("nti,nsi->nts", queries, keys) / len(A) ** 0.5
    return scores.log_softmax(dim=-1).flatten()


@pytest.mark.parametrize("name", GROUPS)
def test_the_share_is_that_of_the_null_space_of_the_jacobian(name: str) -> None:
    """No symmetry assumed at all: the directions in which a head's attention doesn't change, by SVD."""
    group = GROUPS[name]
    pair = Pair(0.5 * normal(6, 8, seed=31), 0.5 * normal(6, 8, seed=32), normal(6, 1, seed=33), normal(6, 1, seed=34))
    shapes = [part.shape for part in pair]
    xs, turns = attention_scores(group, width=8)
    jacobian = torch.autograd.functional.jacobian(
        lambda p: scores_seen_by_the_softmax(p, shapes, xs, turns), flat(pair), vectorize=True
    )
    _, values, rows = torch.linalg.svd(jacobian)
    nullity = group.dimension + group.plain
    # The gap: noise of 2e-16 against 1.5e-2, the slowest rotation's.
    assert float(values[-nullity] / values[0]) < 1e-13
    assert float(values[-nullity - 1] / values[0]) > 1e-3
    update = random_update(pair)
    slow = (rows[-nullity:] @ flat(update)).square().sum() / (flat(update) @ flat(update))
    # The null space is known to noise / gap, 1e-14.
    assert float(unidentified_share_with_biases(group, pair, update)) == pytest.approx(float(slow), rel=CLOSE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_loss_gradient_has_no_unidentified_part(case: Case) -> None:
    pair, gradient = case.pair(), gather(case.family, first_gradient(case.attention))
    assert float(unidentified_share_with_biases(case.group, pair, gradient).max()) < ZERO
    bare = float(unidentified_share(case.group, pair, gradient).max())
    # Weights alone miss the biases' part, so their share is not zero: it is what the paper's own column shows.
    assert (bare > 1e-6) == case.biased
    assert (bare < ZERO) == (not case.biased)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_null_update_is_unidentified_in_full(case: Case) -> None:
    pair = case.pair()
    X = random_algebra(case.group, *pair.A.shape[:-2], seed=8)
    null = tangent(X, pair)
    share = unidentified_share_with_biases(case.group, pair, null)
    torch.testing.assert_close(share, torch.ones_like(share), rtol=0, atol=CLOSE)
    found = project(case.group, augmented(case.group, pair), augmented(case.group, null)).X
    torch.testing.assert_close(found, X, rtol=0, atol=CLOSE)
    # The sign as the paper's objective prints it.
    printed = unidentified_share(case.group, pair, null._replace(B=-null.B))
    assert float(printed.max()) < 0.99


def test_a_free_key_bias_counts_in_full_and_a_rotated_one_does_not() -> None:
    pair = Pair(normal(6, 9), normal(6, 9, seed=1), normal(6, 1, seed=2), normal(6, 1, seed=3))
    nothing = Pair(*(torch.zeros_like(part) for part in pair))
    update = nothing._replace(b=normal(6, 1, seed=4))
    assert float(unidentified_share_with_biases(GROUPS["none"], pair, update)) == 1
    assert float(unidentified_share_with_biases(GROUPS["half"], pair, update)) < 0.5
    plain = float(update.b[4:].square().sum() / update.b.square().sum())
    assert plain < float(unidentified_share_with_biases(GROUPS["partial"], pair, update)) < 1


def test_a_tiny_share_keeps_its_digits() -> None:
    """Energies add positive terms: a share of 1e-24 is not lost in the 1 that surrounds it."""
    pair = Pair(normal(6, 9), normal(6, 9, seed=1))
    null = tangent(random_algebra(GROUPS["none"], seed=2), pair)
    gradient = random_update(pair)
    X = project(GROUPS["none"], pair, gradient).X
    part = tangent(X, pair)
    identified = Pair(gradient.A - part.A, gradient.B - part.B)
    update = Pair(identified.A + 1e-12 * null.A, identified.B + 1e-12 * null.B)
    expected = 1e-24 * float(squared_norm(null) / squared_norm(update))
    # The update stores 1e-12 beside numbers of order 1 with 2e-16: its null part has 3 to 4 digits.
    assert float(unidentified_share(GROUPS["none"], pair, update)) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", GROUPS)
def test_turning_the_rows_keeps_the_share_and_stretching_them_does_not(name: str) -> None:
    """ρ depends on the point of the orbit: only orthogonal elements of the group leave it alone (theory 13)."""
    group = GROUPS[name]
    pair = Pair(normal(6, 9), normal(6, 9, seed=1))
    update = random_update(pair)
    before = float(unidentified_share(group, pair, update))
    step = random_move(group, pair, seed=4)
    U, _, Vt = torch.linalg.svd(step.S)
    turn = step._replace(S=U @ Vt, S_inverse_T=U @ Vt)
    assert float(unidentified_share(group, act(turn, pair), act(turn, update))) == pytest.approx(before, rel=CLOSE)
    stretched = float(unidentified_share(group, act(step, pair), act(step, update)))
    assert abs(stretched - before) > 1e-3 * before


@pytest.mark.parametrize(("rank_a", "rank_b"), [(3, 6), (6, 2), (3, 2), (0, 2), (0, 0)])
def test_missing_rank_gives_the_smaller_tangent_space_and_no_nan(rank_a: int, rank_b: int) -> None:
    def of_rank(rank: int, seed: int) -> Tensor:
        return normal(6, rank, seed=seed) @ normal(rank, 9, seed=seed + 1)

    pair, update = Pair(of_rank(rank_a, 1), of_rank(rank_b, 3)), Pair(normal(6, 9, seed=5), normal(6, 9, seed=6))
    X, energy = project(GROUPS["none"], pair, update)
    directions = null_directions(GROUPS["none"], pair)
    slow = least_squares(directions, flat(update))
    assert bool(X.isfinite().all())
    # Singular values of random products of low rank reach 1e-2 of the largest; squared, 1e-4 of CLOSE's condition.
    torch.testing.assert_close(flat(tangent(X, pair)), slow, rtol=0, atol=1e-10)
    assert float(energy) == pytest.approx(float(slow @ slow), rel=1e-10)
    # 36 − (missing in A)(missing in B) directions: what neither side sees is no direction.
    assert int(torch.linalg.matrix_rank(directions)) == 36 - (6 - rank_a) * (6 - rank_b)


@pytest.mark.parametrize("name", GROUPS)
def test_head_sizes_above_the_embedding(name: str) -> None:
    group = GROUPS[name]
    pair, update = Pair(normal(6, 4), normal(6, 3, seed=1)), Pair(normal(6, 4, seed=2), normal(6, 3, seed=3))
    X, energy = project(group, pair, update)
    slow = least_squares(null_directions(group, pair), flat(update))
    torch.testing.assert_close(flat(tangent(X, pair)), slow, rtol=0, atol=CLOSE)
    assert float(energy) == pytest.approx(float(slow @ slow), rel=CLOSE)


@pytest.mark.parametrize("name", GROUPS)
def test_zero_weights_and_zero_updates(name: str) -> None:
    """Zero weights have no tangent directions; a zero update has no share, and says so with NaN."""
    group, zero = GROUPS[name], torch.zeros(6, 9, dtype=torch.float64)
    pair, update = Pair(normal(6, 9), normal(6, 9, seed=1)), Pair(normal(6, 9, seed=2), normal(6, 9, seed=3))
    X, energy = project(group, Pair(zero, zero), update)
    assert torch.equal(X, torch.zeros(6, 6, dtype=torch.float64))
    assert float(energy) == float(unidentified_share(group, Pair(zero, zero), update)) == 0
    assert bool(unidentified_share(group, pair, Pair(zero, zero)).isnan())
    assert bool(unidentified_share_with_biases(group, pair, Pair(zero, zero)).isnan())
    for half in (Pair(pair.A, zero), Pair(zero, pair.B)):
        slow = least_squares(null_directions(group, half), flat(update))
        assert float(project(group, half, update).energy) == pytest.approx(float(slow @ slow), rel=CLOSE)


@pytest.mark.parametrize("name", GROUPS)
def test_a_batch_gives_what_its_pairs_give(name: str) -> None:
    group = GROUPS[name]
    pair, update = (
        Pair(normal(2, 3, 6, 9), normal(2, 3, 6, 7, seed=1)),
        Pair(normal(2, 3, 6, 9, seed=2), normal(2, 3, 6, 7, seed=3)),
    )
    pair.A[0, 1] = pair.B[0, 1] = 0  # a zero pair must not touch its neighbours
    X, energy = project(group, pair, update)
    for (index, one), (_, d) in zip(one_by_one(pair), one_by_one(update), strict=True):
        alone = project(group, one, d)
        # The same sums in another order.
        torch.testing.assert_close(X[index], alone.X, rtol=0, atol=CLOSE)
        torch.testing.assert_close(energy[index], alone.energy, rtol=CLOSE, atol=0)


@pytest.mark.parametrize("name", GROUPS)
def test_spectra_that_are_known_change_nothing(name: str) -> None:
    group = GROUPS[name]
    pair, update = Pair(normal(6, 9), normal(6, 7, seed=1)), Pair(normal(6, 9, seed=2), normal(6, 7, seed=3))
    known = spectra(pair)
    for values, vectors, matrix in ((*known[:2], pair.A), (*known[2:], pair.B)):
        assert bool((values.diff() >= 0).all())
        rebuilt = vectors @ torch.diag(values) @ vectors.T
        torch.testing.assert_close(rebuilt, matrix @ matrix.T, rtol=0, atol=1e-12)  # entries of order 10
    assert torch.equal(unidentified_share(group, pair, update, known), unidentified_share(group, pair, update))


@pytest.mark.parametrize("name", GROUPS)
def test_float32_is_taken_as_it_is(name: str) -> None:
    group = GROUPS[name]
    pair, update = Pair(normal(6, 9), normal(6, 7, seed=1)), Pair(normal(6, 9, seed=2), normal(6, 7, seed=3))
    single = unidentified_share(group, Pair(pair.A.float(), pair.B.float()), Pair(update.A.float(), update.B.float()))
    assert single.dtype == torch.float32
    # 6e-8 times the condition of about 1e2.
    assert float(single) == pytest.approx(float(unidentified_share(group, pair, update)), rel=1e-4)
