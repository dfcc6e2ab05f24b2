"""Section 4.4: directions in which the query-key product has no derivative, and what a finite step along them does."""

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.symmetry import act as acting
from identcli.symmetry import project as projecting
from identcli.symmetry import tangent as tangents
from identcli.symmetry.pair import Pair
from identcli.symmetry.rank import numerical_rank
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.products import product, product_jacobian, weights
from identcli.theory.trial import EXACT, Trial, largest

IN_ROUNDING = "float64: epsilon × sums of a few hundred terms × condition of the weights"


def derivative(pair: Pair, along: Pair) -> Tensor:
    """Bᵀ δA + δBᵀ A."""
    return pair.B.mT @ along.A + along.B.mT @ pair.A


def slope(pair: Pair, along: Pair) -> float:
    """‖Bᵀ δA + δBᵀ A‖ / (‖Bᵀ δA‖ + ‖δBᵀ A‖): 1 when nothing cancels, 0 when all does."""
    whole = (pair.B.mT @ along.A).norm() + (along.B.mT @ pair.A).norm()
    return float(derivative(pair, along).norm() / whole)


class Factors:
    """Thin SVDs W = U Σ Vᵀ of W_Q and W_K (D × E), as the section has them."""

    def __init__(self, pair: Pair) -> None:
        self.U_Q, self.s_Q, self.Vt_Q = torch.linalg.svd(pair.A, full_matrices=False)
        self.U_K, self.s_K, self.Vt_K = torch.linalg.svd(pair.B, full_matrices=False)

    def first(self, S: Tensor) -> Tensor:
        """U_K Σ_K⁻¹ S V_Qᵀ."""
        return self.U_K / self.s_K @ S @ self.Vt_Q

    def second(self, S: Tensor) -> Tensor:
        """−U_Q Σ_Q⁻¹ Sᵀ V_Kᵀ."""
        return -self.U_Q / self.s_Q @ S.mT @ self.Vt_K


@lemma(
    "4.4",
    "W_Kᵀ W_Q has no derivative along (δW_Q, δW_K) = (S W_Q, −Sᵀ W_K) for any S, also a singular one",
    tolerance=1e-13,
    reason=IN_ROUNDING,
    counter="(S W_Q, −S W_K), without the transpose",
)
def null_direction(trial: Trial) -> Finding:
    pair, S = weights(trial), trial.normal(trial.size.D, trial.size.D)
    S[:, 0] = 0
    return Finding(0, slope(pair, tangents.tangent(S, pair)), slope(pair, Pair(S @ pair.A, -S @ pair.B)))


@lemma(
    "4.4",
    "The null directions are the velocities of the orbit: d/dt (e^{tX} W_Q, e^{−tXᵀ} W_K) at t = 0, biases included",
    tolerance=1e-8,
    reason="central difference with t = 1e-4: truncation t²·‖X‖³/6 is about 1e-9, rounding epsilon/t = 2e-12",
    counter="velocity of the queries with that of the keys reversed",
)
def velocity_of_orbit(trial: Trial) -> Finding:
    facts = trial.facts("qk")
    family, pair = trial.pair(facts, "qk")
    X, t = trial.algebra(family.group, family.layers, family.groups) / family.group.size, 1e-4
    ahead, behind = (acting.act(acting.move(torch.linalg.matrix_exp(s * X)), pair) for s in (t, -t))
    along = tangents.tangent(X, pair)

    def miss(sign: float) -> float:
        parts = zip(ahead, behind, along, (1, sign, 1, sign), strict=True)
        misses = [
            float(((a - b) / (2 * t) - s * v).norm() / v.norm())
            for a, b, v, s in parts
            if a is not None and b is not None and v is not None
        ]
        return largest(*misses)

    return Finding(0, miss(1), miss(-1))


@lemma(
    "4.4",
    "In coordinates of the SVDs: δW_Q = U_K Σ_K⁻¹ S V_Qᵀ, δW_K = −U_Q Σ_Q⁻¹ Sᵀ V_Kᵀ",
    tolerance=1e-11,
    reason=IN_ROUNDING + ", here up to 1e3",
    counter="S in place of Sᵀ in δW_K",
    erratum=Erratum(
        printed="δW_K(S) = Ū_K Σ̄_K⁻¹ S V̄_Qᵀ, δW_Q(S) = −Ū_Q Σ̄_Q⁻¹ Sᵀ V̄_Kᵀ",
        why="the names are exchanged: with these the derivative is {printed:.2g} of its two terms and not 0",
        right="δW_Q(S) = Ū_K Σ̄_K⁻¹ S V̄_Qᵀ and δW_K(S) = −Ū_Q Σ̄_Q⁻¹ Sᵀ V̄_Kᵀ",
    ),
)
def null_direction_in_svd(trial: Trial) -> Finding:
    pair, S = weights(trial), trial.normal(trial.size.D, trial.size.D)
    f = Factors(pair)
    return Finding(
        0,
        slope(pair, Pair(f.first(S), f.second(S))),
        slope(pair, Pair(f.first(S), f.second(S.mT))),
        slope(pair, Pair(f.second(S), f.first(S))),
    )


@lemma(
    "4.4",
    "The null directions {(S W_Q, −Sᵀ W_K)} are a linear space of dimension D², and there are no others",
    tolerance=0,
    reason=EXACT + "; the rank of the directions is at most the nullity of the Jacobian, so equality settles both",
    counter="only symmetric S: D(D + 1)/2",
)
def dimension_of_null_space(trial: Trial) -> Finding:
    D, E = min(trial.size.D, 5), 7
    group, pair = Group(D), weights(trial, D=D, E=E)
    X = acting.basis(group)
    along = tangents.tangent(X, pair)
    T = torch.cat([along.A.flatten(1), along.B.flatten(1)], dim=1).mT
    J = product_jacobian(pair)
    dimension = numerical_rank(T).rank
    null = float((J @ T).norm() / (J.norm() * T.norm())) < 1e-13
    exact = null and dimension == numerical_rank(J).nullity
    even = tangents.tangent(X + X.mT, pair)
    symmetric = numerical_rank(torch.cat([even.A.flatten(1), even.B.flatten(1)], dim=1).mT).rank
    return Finding(group.dimension, dimension if exact else -1, symmetric)


@lemma(
    "4.4",
    "(W_Q, −W_K) is a null direction: the one of S = 1, or of S = Σ_K U_Kᵀ U_Q Σ_Q in SVD coordinates",
    tolerance=1e-11,
    reason=IN_ROUNDING + ", here up to 1e3",
    counter="(W_Q, W_K)",
    erratum=Erratum(
        printed="the example ends at δW_K(S) = W_Q, δW_Q(S) = −W_K",
        why="the same exchange of names: along (δW_Q, δW_K) = (−W_K, W_Q) the derivative is {printed:.2g} of its terms",
        right="δW_Q(S) = W_Q, δW_K(S) = −W_K",
    ),
)
def trivial_null_direction(trial: Trial) -> Finding:
    pair = weights(trial)
    f = Factors(pair)
    S = f.s_K[:, None] * f.U_K.mT @ f.U_Q * f.s_Q
    reached = Pair(f.first(S), f.second(S))
    miss = float((reached.A - pair.A).norm() + (reached.B + pair.B).norm()) / float(pair.A.norm() + pair.B.norm())
    ones = projecting.unidentified_share(Group(trial.size.D), pair, Pair(pair.A, -pair.B))
    return Finding(
        0,
        miss + slope(pair, reached) + abs(1 - float(ones)),
        slope(pair, Pair(pair.A, pair.B)),
        slope(pair, Pair(-pair.B, pair.A)),
    )


@lemma(
    "4.4",
    "A whole step along a null direction changes W_Kᵀ W_Q by exactly −W_Kᵀ S² W_Q, in SVD coordinates "
    "−V_K S Σ_Q⁻¹ U_Qᵀ U_K Σ_K⁻¹ S V_Qᵀ",
    tolerance=1e-10,
    reason=IN_ROUNDING + ", squared, here up to 1e5",
    counter="no change at all",
    erratum=Erratum(
        printed="W_Kᵀ W_Q + V̄_K S Σ̄_Q⁻¹ Ū_Qᵀ Ū_K Σ̄_K⁻¹ S V̄_Qᵀ",
        why="the remainder δW_Kᵀ δW_Q carries the minus of δW_K; as printed it is missed by {printed:.2g} of its size",
        right="W_Kᵀ W_Q − V̄_K S Σ̄_Q⁻¹ Ū_Qᵀ Ū_K Σ̄_K⁻¹ S V̄_Qᵀ",
    ),
)
def remainder_of_finite_step(trial: Trial) -> Finding:
    pair, S = weights(trial), trial.normal(trial.size.D, trial.size.D)
    f = Factors(pair)
    along = Pair(f.first(S), f.second(S))
    change = product(Pair(pair.A + along.A, pair.B + along.B)) - product(pair)
    middle = S / f.s_Q @ f.U_Q.mT @ f.U_K / f.s_K @ S
    formula = -f.Vt_K.mT @ middle @ f.Vt_Q
    plain = tangents.tangent(S, pair)
    plain_change = product(Pair(pair.A + plain.A, pair.B + plain.B)) - product(pair)
    plain_formula = -pair.B.mT @ S @ S @ pair.A

    def miss(expected: Tensor, got: Tensor) -> float:
        return float((got - expected).norm() / formula.norm())

    return Finding(
        0,
        largest(miss(formula, change), float((plain_change - plain_formula).norm() / plain_formula.norm())),
        miss(torch.zeros_like(formula), change),
        miss(-formula, change),
    )
