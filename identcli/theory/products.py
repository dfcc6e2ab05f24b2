"""Sections 4.1–4.3: what a query-key product does not see, how much that is, and the canonical form."""

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry import act as acting
from identcli.symmetry import charge as charging
from identcli.symmetry import product as products
from identcli.symmetry.pair import Pair, rotated_rows
from identcli.symmetry.rank import numerical_rank
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.trial import BY_ROUNDING, EXACT, ROUNDING, Trial, difference, largest, smallest


def product(pair: Pair) -> Tensor:
    """BᵀA (…, β, α): all that a model sees of a pair. For queries and keys W_Kᵀ W_Q."""
    return pair.B.mT @ pair.A


def weights(trial: Trial, *batch: int, D: int | None = None, E: int | None = None) -> Pair:
    """Random W_Q, W_K (…, D, E)."""
    D, E = D or trial.size.D, E or trial.size.E
    return Pair(trial.normal(*batch, D, E), trial.normal(*batch, D, E))


def product_jacobian(pair: Pair) -> Tensor:
    """d(BᵀA)/d(A, B) as a matrix (βα, Dα + Dβ): the columns are Bᵀ(E_ij) and (E_ij)ᵀA."""
    (D, alpha), beta = pair.A.shape, pair.B.shape[1]
    by_A = torch.einsum("db,ac->badc", pair.B, torch.eye(alpha, dtype=pair.A.dtype))
    by_B = torch.einsum("da,bc->badc", pair.A, torch.eye(beta, dtype=pair.A.dtype))
    return torch.cat([by_A.reshape(beta * alpha, D * alpha), by_B.reshape(beta * alpha, D * beta)], dim=1)


def change_of_product(S: Tensor, T: Tensor, pair: Pair) -> float:
    """Relative change of BᵀA when (A, B) -> (S A, T B)."""
    return difference(product(acting.act(acting.Move(S, T), pair)), product(pair))


@lemma(
    "4.1",
    "With scalar tokens (E = 1) a head's queries and keys matter only as one number: 2D − 1 of 2D are unidentified",
    tolerance=0,
    reason=EXACT,
    counter="the derivative by the queries alone, keys fixed: nullity D − 1",
)
def scalar_tokens(trial: Trial) -> Finding:
    D = trial.size.D
    J = product_jacobian(weights(trial, E=1))
    queries_only = numerical_rank(J[:, :D]).nullity
    return Finding(2 * D - 1, numerical_rank(J).nullity, queries_only)


@lemma(
    "4.2",
    "A permutation of the rows of W_Q and W_K alike leaves W_Kᵀ W_Q",
    tolerance=ROUNDING,
    reason="a sum in another order: float64 epsilon × its terms",
    counter="permuting the rows of W_Q alone",
)
def permutation(trial: Trial) -> Finding:
    pair = weights(trial)
    # Rolled by one: a random permutation could be the identity.
    P = torch.eye(trial.size.D, dtype=torch.float64).roll(1, 0)
    return Finding(
        0,
        change_of_product(P, acting.move(P).S_inverse_T, pair),
        difference(product(Pair(P @ pair.A, pair.B)), product(pair)),
    )


@lemma(
    "4.2",
    "A rotation of the rows of W_Q and W_K alike leaves W_Kᵀ W_Q",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="rotating W_Q by the rotation and W_K by its transpose",
)
def rotation(trial: Trial) -> Finding:
    pair, P = weights(trial), trial.orthogonal(trial.size.D)
    return Finding(0, change_of_product(P, acting.move(P).S_inverse_T, pair), change_of_product(P, P.mT, pair))


@lemma(
    "4.2",
    "Scaling W_Q by a and W_K by 1/a leaves W_Kᵀ W_Q",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="scaling both by a",
)
def scaling(trial: Trial) -> Finding:
    pair, S = weights(trial), 3 * torch.eye(trial.size.D, dtype=torch.float64)
    return Finding(0, change_of_product(S, acting.move(S).S_inverse_T, pair), change_of_product(S, S, pair))


@lemma(
    "4.2",
    "(S W_Q, S⁻ᵀ W_K) gives the same W_Kᵀ W_Q for every invertible S",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="S⁻¹ in place of S⁻ᵀ",
)
def general_S(trial: Trial) -> Finding:
    pair, step = weights(trial, 3), acting.move(trial.invertible(3, trial.size.D))
    return Finding(
        0,
        difference(product(acting.act(step, pair)), product(pair)),
        change_of_product(step.S, torch.linalg.inv(step.S), pair),
    )


@lemma(
    "4.2",
    "D² of the 2DE parameters of W_Q and W_K are unidentified when D ≤ E",
    tolerance=0,
    reason=EXACT,
    counter="the sum W_Q + W_K instead of the product: nullity DE",
)
def unidentified_of_product(trial: Trial) -> Finding:
    D, E = min(trial.size.D, 5), 7
    pair = weights(trial, D=D, E=E)
    J = product_jacobian(pair)
    of_sum = torch.eye(D * E, dtype=torch.float64).repeat(1, 2)
    return Finding(Group(D).dimension, numerical_rank(J).nullity, 2 * D * E - int(torch.linalg.matrix_rank(of_sum)))


def symmetric_jacobian(W: Tensor) -> Tensor:
    """d(WᵀW)/dW, (E², DE)."""
    J = product_jacobian(Pair(W, W))
    return J[:, : W.numel()] + J[:, W.numel() :]


@lemma(
    "4.2",
    "With D > E or lost rank (a of W_Q, b of W_K) it is 2DE − (a + b)E + ab, in each of 7 cases",
    tolerance=0,
    reason=EXACT,
    counter="D² in every case",
)
def unidentified_without_full_rank(trial: Trial) -> Finding:
    cases = [(3, 7, 2, 3), (3, 7, 2, 2), (3, 7, 1, 3), (3, 7, 0, 2), (5, 5, 5, 5), (6, 4, 4, 4), (5, 3, 3, 3)]
    hits = naive = 0
    for D, E, a, b in cases:
        A, B = (trial.normal(D, r) @ trial.normal(r, E) for r in (a, b))
        nullity = numerical_rank(product_jacobian(Pair(A, B))).nullity
        hits += nullity == 2 * D * E - (a + b) * E + a * b
        naive += nullity == D**2
    return Finding(len(cases), hits, naive)


@lemma(
    "4.2",
    "The identified share of W_Q and W_K is 1 − D/(2E)",
    tolerance=1e-12,
    reason="a ratio of two whole numbers in float64",
    counter="1 − D/E, as if only one matrix counted",
)
def identified_share(trial: Trial) -> Finding:
    D, E = min(trial.size.D, 4), 7
    rank = numerical_rank(product_jacobian(weights(trial, D=D, E=E)))
    return Finding(1 - D / (2 * E), rank.rank / rank.columns, 1 - D / E)


@lemma(
    "4.2",
    "The singular values of W_Kᵀ W_Q, found from D × D factors, are those of the whole E × E product, all along "
    "the orbit",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="the singular values of W_Q, which S changes",
)
def spectrum_of_product(trial: Trial) -> Finding:
    pair, step = weights(trial, 2), acting.move(trial.invertible(2, trial.size.D))
    there = acting.act(step, pair)
    dense = torch.linalg.svdvals(product(pair))[..., : trial.size.D]
    miss = largest(*[difference(products.spectrum(products.triangles(at)), dense) for at in (pair, there)])
    of_A, of_A_there = torch.linalg.svdvals(pair.A), torch.linalg.svdvals(there.A)
    return Finding(0, miss, difference(of_A_there, of_A))


@lemma(
    "4.2",
    "How far a change of the weights moves the product is found without forming it: ‖B'ᵀA' − BᵀA‖ / ‖BᵀA‖, with rotary "
    "positions over the complex product of each rotated pair of rows and that of the other rows",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="the change of W_Q and W_K themselves",
)
def change_of_product_without_it(trial: Trial) -> Finding:
    miss, of_weights = 0.0, 1.0
    for rotary in (0, trial.size.D, 2):
        group = Group(trial.size.D, rotary)
        before, by = weights(trial, 2), weights(trial, 2)
        after = Pair(before.A + by.A / 10, before.B + by.B / 10)
        old, new = (seen_products(group, at) for at in (before, after))
        apart = torch.stack([(n - o).abs().square().sum((-2, -1)) for n, o in zip(new, old, strict=True)]).sum(0)
        dense = (apart / torch.stack([o.abs().square().sum((-2, -1)) for o in old]).sum(0)).sqrt()
        miss = largest(miss, difference(products.change(group, before, after), dense))
        moved = ((by.A / 10).square().sum((-2, -1)) / before.A.square().sum((-2, -1))).sqrt()
        of_weights = smallest(of_weights, difference(moved, dense))
    return Finding(0, miss, of_weights)


def seen_products(group: Group, pair: Pair) -> list[Tensor]:
    """What a model uses: v̄ᵀu of each rotated pair of rows, BᵀA of the rest; each (…, columns, columns)."""
    found = []
    if group.rotary:
        u, v = rotated_rows(group, pair.A), rotated_rows(group, pair.B)
        found += [v[..., j, :, None].conj() * u[..., j, None, :] for j in range(group.rotary // 2)]
    if group.plain:
        found.append(product(Pair(pair.A[..., group.rotary :, :], pair.B[..., group.rotary :, :])))
    return found


@lemma(
    "4.2",
    "A rank is only told where the singular values leave a gap, and outputs suffice: of 4 Jacobians one is decided",
    tolerance=0,
    reason=EXACT,
    counter="deciding all four",
)
def rank_needs_a_gap(trial: Trial) -> Finding:
    J = product_jacobian(weights(trial, D=2, E=4))
    U, V = trial.orthogonal(16), trial.orthogonal(16)
    smooth = U * 10.0 ** -torch.arange(16, dtype=torch.float64) @ V  # a slope, not a step
    tail = 10.0 ** -torch.arange(8, 16, dtype=torch.float64)
    scales = U * torch.cat([torch.ones(8, dtype=torch.float64), tail]) @ V  # a step, but not down to rounding
    asked = [J, smooth, scales, J[:8]]
    return Finding(1, sum(numerical_rank(one).decided for one in asked), len(asked))


def canonical(pair: Pair) -> Pair:
    """Σ^½ V₁ᵀ, Σ^½ U₁ᵀ from the SVD U Σ Vᵀ of W_Kᵀ W_Q, U₁ and V₁ its first D columns."""
    D = pair.A.shape[-2]
    U, sigma, Vt = torch.linalg.svd(product(pair))
    root = sigma[..., :D, None].sqrt()
    return Pair(root * Vt[..., :D, :], root * U[..., :, :D].mT)


@lemma(
    "4.3",
    "W_Q = Σ^½ (V₁)ᵀ, W_K = Σ^½ (U₁)ᵀ with orthonormal rows below Σ^½ gives the same W_Kᵀ W_Q",
    tolerance=ROUNDING,
    reason="an SVD in float64: epsilon × size × σ_max/σ_max",
    counter="the two factors exchanged",
    erratum=Erratum(
        printed="Ū_Q = Ū_{1:D,:}, Ū_K = V̄_{1:D,:} (the first D rows), singular values “non-decreasing” in index",
        why="the first D rows of U and V are not singular vectors, and U belongs to W_Kᵀ, on the left: the product is "
        "missed by {printed:.2g} of its norm. Non-decreasing values would have the zeros first, yet the last E − D "
        "are the ones that vanish.",
        right="W_Q takes the first D columns of V̄, transposed, and W_K those of Ū; singular values are non-increasing",
    ),
)
def canonical_form(trial: Trial) -> Finding:
    pair = weights(trial)
    D, target, form = trial.size.D, product(pair), canonical(pair)
    U, sigma, Vt = torch.linalg.svd(target)
    root = sigma[:D, None].sqrt()
    printed = Pair(root * U[:D, :], root * Vt.mT[:D, :])
    return Finding(
        0,
        difference(product(form), target),
        difference(product(Pair(form.B, form.A)), target),
        difference(product(printed), target),
    )


@lemma(
    "4.3",
    "The canonical form is balanced: W_Q W_Qᵀ = W_K W_Kᵀ = Σ",
    tolerance=ROUNDING,
    reason="an SVD in float64: epsilon × size",
    counter="the weights that it was made from",
)
def canonical_is_balanced(trial: Trial) -> Finding:
    pair = weights(trial)

    def imbalance(one: Pair) -> float:
        return float(charging.imbalance(one).norm() / (one.A @ one.A.mT).norm())

    return Finding(0, imbalance(canonical(pair)), imbalance(pair))


@lemma(
    "4.3",
    "Keeping D rows orthonormal costs D(D − 1)/2 + D = D(D + 1)/2 conditions",
    tolerance=0,
    reason=EXACT,
    counter="the D² entries of W Wᵀ − 1, as if all were independent",
)
def orthonormality_conditions(trial: Trial) -> Finding:
    D, E = min(trial.size.D, 5), 7
    W = torch.linalg.qr(trial.normal(E, D)).Q.mT
    # d(W Wᵀ)/dW: the same map as d(VᵀV)/dV with V = Wᵀ.
    rank = numerical_rank(symmetric_jacobian(W.mT)).rank
    return Finding(D * (D + 1) / 2, rank, D**2)


@lemma(
    "4.3",
    "Two orthonormal factors and D scales have 2DE − D(D + 1) + D = 2DE − D² degrees of freedom: those of the product",
    tolerance=0,
    reason=EXACT,
    counter="counting the scales twice, once per factor",
)
def canonical_degrees_of_freedom(trial: Trial) -> Finding:
    D, E = min(trial.size.D, 5), 7
    rank = numerical_rank(product_jacobian(weights(trial, D=D, E=E))).rank
    return Finding(2 * D * E - D * (D + 1) + D, rank, 2 * D * E - D * (D + 1) + 2 * D)
