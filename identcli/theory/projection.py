"""Section 5.1, second half: ρ, the share of an update that lies in the unidentified space, and its rounding floor."""

from collections.abc import Iterator

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.architecture.pairs import Circuit, PairFamily
from identcli.symmetry import act as acting
from identcli.symmetry import charge as charging
from identcli.symmetry import pair as pairs
from identcli.symmetry import project as projecting
from identcli.symmetry import rounding
from identcli.symmetry import tangent as tangents
from identcli.symmetry.pair import Pair
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.products import weights
from identcli.theory.trial import ROUNDING, Trial, difference, gather_layer, largest, moved, smallest

BY_SOLVING = "float64: epsilon × condition of a D² least-squares problem (1e2 to 1e4, more where D is close to E)"


def layers(trial: Trial, biases: str) -> Iterator[tuple[PairFamily, Pair]]:
    """The random pairs that a statement is tried on: queries and keys plain, rotary and partly rotary; values."""
    circuits: tuple[tuple[Circuit, int], ...] = (("qk", 0), ("qk", trial.size.D), ("qk", 2), ("ov", 0))
    for circuit, rotary in circuits:
        yield trial.pair(trial.facts(biases, rotary=rotary), circuit)


def random_update(trial: Trial, pair: Pair) -> Pair:
    """Independent normal numbers in every place of the pair."""
    return Pair(*(None if W is None else trial.normal(*W.shape) for W in pair))  # type: ignore[arg-type]


def flat(pair: Pair) -> Tensor:
    """All numbers of a pair without batch axes, in one row; with one batch axis, in one row each."""
    rows = pair.A.shape[0] if pair.A.ndim == 3 else 1
    return torch.cat([part.reshape(rows, -1) for part in pair if part is not None], dim=1)


def tangent_columns(group: Group, pair: Pair, key_bias: bool) -> Tensor:
    """All unidentified directions of one pair (no batch axes) as columns, an unrotated key bias among them."""
    along = tangents.tangent(acting.basis(group), pair)
    b = along.b
    if b is not None and key_bias:
        # Unrotated rows of b are null each by itself, so what the move does to them is in their span.
        b = b.clone()
        b[:, group.rotary :] = 0
    columns = flat(Pair(along.A, along.B, along.a, b)).mT
    if pair.b is None or not key_bias:
        return columns
    free = torch.zeros(columns.shape[0], group.plain, dtype=columns.dtype)
    start = columns.shape[0] - group.size
    free[start + group.rotary + torch.arange(group.plain), torch.arange(group.plain)] = 1
    return torch.cat([columns, free], dim=1)


def share_by_least_squares(columns: Tensor, update: Tensor) -> float:
    """Squared norm of the projection of a vector on the span of columns, over its own."""
    solution = torch.linalg.lstsq(columns, update[:, None], driver="gelsd").solution
    return float((columns @ solution).square().sum() / update.square().sum())


def one(pair: Pair, index: int) -> Pair:
    """The pair of the first layer and the kv group `index`."""
    return pair.each(lambda part: part[0, index])


@lemma(
    "5.1",
    "ρ of any update is the share of its projection on {(S W_Q, −Sᵀ W_K)}, found here by dense least squares, in each "
    "kv group of plain, rotary and partly rotary layers and for values and outputs",
    tolerance=1e-10,
    reason=BY_SOLVING,
    counter="on {(S W_Q, S W_K)}",
)
def share_is_a_projection(trial: Trial) -> Finding:
    worst, wrong = 0.0, 0.0
    for family, pair in layers(trial, ""):
        update = random_update(trial, pair)
        share = projecting.unidentified_share(family.group, pair, update)
        for g in range(family.groups):
            columns = tangent_columns(family.group, one(pair, g), key_bias=False)
            dense = share_by_least_squares(columns, flat(one(update, g))[0])
            worst = largest(worst, abs(float(share[0, g]) - dense))
        X, last = acting.basis(family.group), one(pair, 0)
        same = flat(Pair(X @ last.A, X @ last.B)).mT
        wrong = largest(wrong, abs(float(share[0, 0]) - share_by_least_squares(same, flat(one(update, 0))[0])))
    return Finding(0, worst, wrong)


@lemma(
    "5.1",
    "With biases ρ is that share on the bias-augmented pair, an unrotated key bias counting in full",
    tolerance=1e-10,
    reason=BY_SOLVING,
    counter="the paper's ρ, of the weights alone",
)
def share_with_biases_is_a_projection(trial: Trial) -> Finding:
    worst, alone = 0.0, 0.0
    for family, pair in layers(trial, "qkv"):
        update = random_update(trial, pair)
        share = projecting.unidentified_share_with_biases(family.group, pair, update)
        plain = projecting.unidentified_share(family.group, pair, update)
        for g in range(family.groups):
            columns = tangent_columns(family.group, one(pair, g), key_bias=True)
            dense = share_by_least_squares(columns, flat(one(update, g))[0])
            worst = largest(worst, abs(float(share[0, g]) - dense))
            alone = largest(alone, abs(float(plain[0, g]) - dense))
    return Finding(0, worst, alone)


@lemma(
    "5.1",
    "The projection solves S W_Q W_Qᵀ + W_K W_Kᵀ S = δW_Q W_Qᵀ − W_K δW_Kᵀ, and its squared norm is ⟨S, right side⟩",
    tolerance=1e-11,
    reason=BY_SOLVING,
    counter="the right side with +",
)
def sylvester_equation(trial: Trial) -> Finding:
    family, pair = trial.pair(trial.facts(""), "qk")
    update = random_update(trial, pair)
    S, energy = projecting.project(family.group, pair, update)
    left = S @ pair.A @ pair.A.mT + pair.B @ pair.B.mT @ S
    R, wrong = (update.A @ pair.A.mT + sign * pair.B @ update.B.mT for sign in (-1, 1))
    miss = largest(difference(left, R), difference((S * R).sum((-2, -1)), energy))
    size = pairs.squared_norm(tangents.tangent(S, Pair(pair.A, pair.B)))
    return Finding(0, largest(miss, difference(size, energy)), difference(left, wrong))


@lemma(
    "5.1",
    "An update (S W_Q, −Sᵀ W_K) has ρ = 1, with biases (S b_Q) and rotary positions too",
    tolerance=1e-11,
    reason=BY_SOLVING,
    counter="an isotropic update",
    erratum=Erratum(
        printed="min_S ½{‖δW_Q − S W_Q‖² + ‖δW_K − Sᵀ W_K‖²}",
        why="the null directions are (S W_Q, −Sᵀ W_K), so the second term must have +. With the printed sign an update "
        "that the model can't see at all gets ρ = {printed:.2g}. The paper's own R and Sylvester equation are those "
        "of the + form.",
        right="min_S ½{‖δW_Q − S W_Q‖² + ‖δW_K + Sᵀ W_K‖²}",
    ),
)
def null_update(trial: Trial) -> Finding:
    least, isotropic = 1.0, 0.0
    for family, pair in layers(trial, "qv"):
        update = tangents.tangent(trial.algebra(family.group, 1, family.groups), pair)
        found = projecting.unidentified_share_with_biases(family.group, pair, update)
        bare = projecting.unidentified_share(family.group, pair, update)
        least = smallest(least, float(found.min()), float(bare.min()))
        isotropic = largest(
            isotropic, float(projecting.unidentified_share(family.group, pair, random_update(trial, pair)).max())
        )
    pair = weights(trial)
    null = tangents.tangent(trial.normal(trial.size.D, trial.size.D), pair)
    # Printed sign: the same least squares with (S W_Q, +Sᵀ W_K) as directions.
    X = acting.basis(Group(trial.size.D))
    printed = share_by_least_squares(flat(Pair(X @ pair.A, X.mT @ pair.B)).mT, flat(null)[0])
    return Finding(1, least, isotropic, printed)


@lemma(
    "5.1",
    "An update of uniformly random direction has ρ = dimension / numbers in the mean: D/(2E) = 1/(2H) for queries and "
    "keys, D/((m + 1)E) with m of them a group, 1/((m + 1)E) with rotary positions (ratios to it, summed)",
    tolerance=0.4,
    reason="means of at least 200 updates; one scatters by √(2/dimension) ≤ 0.7 of the mean: 0.04 each, and 4 "
    "deviations",
    counter="D/E",
)
def isotropic_mean(trial: Trial) -> Finding:
    total, other = 0.0, 0.0
    for family, pair in layers(trial, ""):
        pair = Pair(pair.A.expand(100, -1, -1, -1), pair.B.expand(100, -1, -1, -1))
        update = random_update(trial, pair)
        mean = float(projecting.unidentified_share(family.group, pair, update).mean())
        total += mean / family.isotropic_share
        other += mean / (2 * family.isotropic_share)
    return Finding(4, total, other)


@lemma(
    "5.3",
    "ρ reaches from 0 to 1: any update is a null one, ρ = 1, and a rest that is orthogonal to all of these, ρ = 0 (the "
    "difference)",
    tolerance=1e-10,
    reason=BY_SOLVING,
    counter="1/(2H), were it a bound",
    erratum=Erratum(
        printed="“the closer ρ is to 1/(2H) the more unidentified actual steps are … SGD steps far away from "
        "that boundary”",
        why="1/(2H) is the mean of ρ for updates of random direction, not a bound: ρ takes every value in [0, 1]. If "
        "1/(2H) = {printed:.3g} were its range, no update could be wholly null.",
        right="1/(2H) is what an update that knows nothing of the symmetry would have",
    ),
)
def share_is_not_bounded(trial: Trial) -> Finding:
    least_reach = 1.0
    for family, pair in layers(trial, ""):
        update = random_update(trial, pair)
        null = tangents.tangent(projecting.project(family.group, pair, update).X, pair)
        rest = pairs.difference(update, null)
        of_null, of_rest = (projecting.unidentified_share(family.group, pair, u) for u in (null, rest))
        least_reach = smallest(least_reach, float((of_null - of_rest).min()))
    bound = 1 / (2 * trial.size.H)
    return Finding(1, least_reach, bound, bound)


@lemma(
    "5.3",
    "ρ of the same change of the model depends on the gauge: another S of the orbit gives another ρ",
    relation="≥",
    tolerance=0,
    reason="a stretch of 3 and 1/3 moves ρ by 0.1 or so; 1e-3 is far above rounding",
    counter="an orthogonal S",
)
def share_depends_on_gauge(trial: Trial) -> Finding:
    group, pair = Group(trial.size.D), weights(trial)
    update = random_update(trial, pair)

    def change(S: Tensor) -> float:
        step = acting.move(S)
        there = projecting.unidentified_share(group, acting.act(step, pair), acting.act(step, update))
        return abs(float(there) - float(projecting.unidentified_share(group, pair, update)))

    stretch = torch.linspace(-1, 1, trial.size.D, dtype=torch.float64)
    return Finding(1e-3, change(torch.diag(3**stretch)), change(trial.orthogonal(trial.size.D)))


@lemma(
    "5.1",
    "Where W_Q and W_K lose rank in the same rows, ρ is still the share of a projection, and finite",
    tolerance=1e-10,
    reason=BY_SOLVING,
    counter="the isotropic mean of a full-rank pair, D/(2E)",
)
def share_without_full_rank(trial: Trial) -> Finding:
    D = trial.size.D
    group, pair = Group(D), weights(trial)
    # The same combination of rows vanishes in both: S along it moves nothing.
    Q = trial.orthogonal(D)
    keep = Q[:, 1:] @ Q[:, 1:].mT
    rotary, less = Group(D, D), torch.ones(D, 1, dtype=torch.float64)
    less[list(rotary.pairs[0])] = 0
    worst = 0.0
    without_rows = Pair(less * pair.A, less * pair.B)
    for kind, poor in ((group, Pair(keep @ pair.A, keep @ pair.B)), (group, without_rows), (rotary, without_rows)):
        update = random_update(trial, poor)
        share = float(projecting.unidentified_share(kind, poor, update))
        dense = share_by_least_squares(tangent_columns(kind, poor, key_bias=False), flat(update)[0])
        worst = largest(worst, abs(share - dense))
    return Finding(0, worst, abs(D / (2 * trial.size.E) - dense))


@lemma(
    "5.1",
    "μ: the smallest sum of eigenvalues of W_Q W_Qᵀ and W_K W_Kᵀ is 0 exactly when both lose rank",
    tolerance=1e-12,
    reason="float64: epsilon × the largest eigenvalue",
    counter="only W_Q loses rank",
)
def smallest_eigenvalues(trial: Trial) -> Finding:
    pair = weights(trial)
    less = torch.ones(trial.size.D, 1, dtype=torch.float64)
    less[0] = 0

    def mu(one: Pair) -> float:
        found = projecting.spectra(one)
        most = float(found.values_a[-1] + found.values_b[-1])
        return float(found.values_a[0] + found.values_b[0]) / most

    return Finding(0, abs(mu(Pair(less * pair.A, less * pair.B))), mu(Pair(less * pair.A, pair.B)))


def rounded(trial: Trial, batch: int, D: int | None = None) -> tuple[Pair, Pair, Pair]:
    """Random pairs (batch, D, E), their errors when stored as float32, and the variances that are expected of these."""
    pair = weights(trial, batch, D=D)
    errors = pairs.difference(Pair(pair.A.float().double(), pair.B.float().double()), pair)
    variances = Pair(*(rounding.rounding_variance(W, torch.float32) for W in (pair.A, pair.B)))
    return pair, errors, variances


@lemma(
    "5.3",
    "Rounding weights to float32 errs by ulp²/12 in the mean square (ratio of the two)",
    tolerance=0.1,
    reason="the mean square of at least 5000 errors scatters by 0.9/√5000 = 0.013, unequal sizes double it",
    counter="by ulp²",
)
def rounding_energy(trial: Trial) -> Finding:
    _, errors, variances = rounded(trial, 100)
    ratio = float(pairs.squared_norm(errors).sum() / (variances.A.sum() + variances.B.sum()))
    return Finding(1, ratio, ratio / 12)


@lemma(
    "5.3",
    "An update made of rounding alone has in the mean the ρ of the rounding floor, or a little more (ratio of the two)",
    tolerance=0.4,
    reason="larger weights have larger errors, which leans them towards the unidentified space by up to a third; "
    "a mean of 100 scatters by 0.05",
    counter="the floor with ulp² instead of ulp²/12",
)
def rounding_floor(trial: Trial) -> Finding:
    family = trial.facts("", kv_groups=trial.size.H).pair("qk")
    pair, errors, variances = rounded(trial, 100)
    floor = rounding.share_floor(variances, family.isotropic_share, pairs.squared_norm(errors))
    ratio = float(projecting.unidentified_share(family.group, pair, errors).mean() / floor.mean())
    return Finding(1, ratio, ratio / 12)


@lemma(
    "5.3",
    "Rounding weights to float32 moves the charge by its rounding floor, for plain, rotary and partly rotary "
    "pairs and for "
    "D = 1 (root mean squares over the floor, summed)",
    tolerance=0.3,
    reason="4 root mean squares over 200 pairs, each of 1 to D² numbers: scatter of 0.05 at most each, and 3 "
    "deviations",
    counter="the floor without its cross terms, √(2 Σ v W²)",
)
def charge_rounding_floor(trial: Trial) -> Finding:
    D, total, other = trial.size.D, 0.0, 0.0
    for group in (Group(1), Group(D), Group(D, D), Group(D, 2)):
        pair, errors, variances = rounded(trial, 200, group.size)
        there = Pair(pair.A + errors.A, pair.B + errors.B)
        moved_by = (charging.charge(group, there) - charging.charge(group, pair)).square().sum(-1).mean().sqrt()
        floor = rounding.charge_floor(group, pair, variances).square().mean().sqrt()
        total += float(moved_by / floor)
        bare = (variances.A * pair.A.square() + variances.B * pair.B.square()).sum((-2, -1)).mean()
        other += float(moved_by / (2 * bare).sqrt())
    return Finding(4, total, other)


@lemma(
    "5.1",
    "Putting heads side by side per kv group and taking them apart again loses nothing, and query head h shares "
    "the key "
    "of group h // m",
    tolerance=0,
    reason="the numbers are copied: equal, bit for bit",
    counter="head h with the key of group h mod G",
)
def grouping_of_heads(trial: Trial) -> Finding:
    facts = trial.facts()
    family, roles = facts.pair("qk"), trial.roles(facts)
    eye = torch.eye(facts.qk_size, dtype=torch.float64).expand(1, facts.kv_groups, -1, -1)
    again = moved(family, acting.Move(eye, eye), roles)
    pair, m = gather_layer(family, roles), facts.heads // facts.kv_groups
    # A head's scores with its key, once from the roles and once from the pair.
    products = (pair.B.mT @ pair.A).reshape(facts.kv_groups, facts.embedding, m, facts.embedding).transpose(1, 2)

    def miss(group_of: Tensor) -> float:
        by_roles = roles["W_K"][group_of].mT @ roles["W_Q"]
        return difference(products.flatten(0, 1), by_roles)

    heads = torch.arange(facts.heads)
    lost = sum(float((again[name] - role).abs().max()) for name, role in roles.items())
    # Products of the same numbers in the same order may still differ by a fused multiply-add.
    return Finding(0, lost + (miss(heads // m) > ROUNDING), miss(heads % facts.kv_groups))
