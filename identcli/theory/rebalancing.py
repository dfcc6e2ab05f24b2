"""Section 5.2.2: the balanced point of an orbit nearest to the weights, and what moves there beside the weights."""

import torch
from torch import Tensor

from identcli.architecture.groups import Group
from identcli.architecture.pairs import Circuit
from identcli.symmetry import act as acting
from identcli.symmetry import balance as balancing
from identcli.symmetry import charge as charging
from identcli.symmetry import pair as pairs
from identcli.symmetry import transport as transporting
from identcli.symmetry.pair import Pair
from identcli.theory.biases import loss_gradients
from identcli.theory.claim import Finding, lemma
from identcli.theory.products import product, weights
from identcli.theory.projection import layers, random_update
from identcli.theory.trial import ROUNDING, Trial, difference, gather_layer, largest, moved, output_change, smallest

# Singular values of the drawn products differ by up to 1e3, and the balancing map has their square roots.
BALANCING = 1e-10
BY_BALANCING = "float64: epsilon × condition of the product (up to 1e4)"


def balanced(group: Group, pair: Pair) -> Pair:
    """The pair at its balanced point, biases with it."""
    return acting.act(balancing.balance(group, pair).step, pair)


def charge_left(group: Group, pair: Pair) -> float:
    """Largest ‖charge‖ of the pairs over ‖A‖² + ‖B‖², weights alone."""
    bare = Pair(pair.A, pair.B)
    return float((charging.charge(group, bare).norm(dim=-1) / pairs.squared_norm(bare)).max())


@lemma(
    "5.2.2",
    "Rebalancing makes the charge 0 in every kv group, of plain, rotary and partly rotary pairs and of values",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="the move of the first kv group for all of them",
)
def rebalancing_zeroes_charge(trial: Trial) -> Finding:
    worst, shared = 0.0, 1.0
    for family, pair in layers(trial, "qkv"):
        step = balancing.balance(family.group, pair).step
        worst = largest(worst, charge_left(family.group, acting.act(step, pair)))
        first = acting.Move(step.S[:, :1].expand_as(step.S), step.S_inverse_T[:, :1].expand_as(step.S))
        shared = smallest(shared, charge_left(family.group, acting.act(first, pair)))
    return Finding(0, worst, shared)


@lemma(
    "5.2.2",
    "Rebalancing leaves the layer's output, with all biases, in plain, rotary and partly rotary layers, of both "
    "circuits",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="moving the weights alone: b_Q left behind",
)
def rebalancing_keeps_output(trial: Trial) -> Finding:
    worst, left = 0.0, 1.0
    for rotary in (0, trial.size.D, 2):
        facts = trial.facts(rotary=rotary)
        roles, x = trial.roles(facts), trial.inputs()
        for circuit in ("qk", "ov"):
            family = facts.pair(circuit)
            step = balancing.balance(family.group, gather_layer(family, roles)).step
            after = moved(family, step, roles)
            worst = largest(worst, output_change(facts, after, roles, x))
            if circuit == "qk":
                left = smallest(left, output_change(facts, {**after, "b_Q": roles["b_Q"]}, roles, x))
    return Finding(0, worst, left)


def distance(group: Group, step: acting.Move, pair: Pair) -> Tensor:
    """‖SA − A‖² + ‖S⁻ᵀB − B‖² (…)."""
    bare = Pair(pair.A, pair.B)
    return pairs.squared_norm(pairs.difference(acting.act(step, bare), bare))


@lemma(
    "5.2.2",
    "It is the balanced point nearest to the weights: no other of 720 rotations and reflections of it (D = 2) is "
    "nearer "
    "(distance² over the least of theirs)",
    tolerance=1e-4,
    reason="the best of 360 angles misses the least by (π/360)² = 8e-5 of the weights' norm at most",
    counter="the QR/SVD form without the Procrustes factor",
)
def rebalancing_is_nearest(trial: Trial) -> Finding:
    group, pair = Group(2), weights(trial, D=2)
    step = balancing.balance(group, pair).step
    angle = torch.arange(360, dtype=torch.float64) * (2 * torch.pi / 360)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1).reshape(-1, 2, 2)
    O = torch.cat([turn, turn * torch.tensor([1.0, -1.0], dtype=torch.float64)])
    least = distance(group, acting.Move(O @ step.S, O @ step.S_inverse_T), pair).min()
    plain = without_procrustes(pair)
    return Finding(1, float(distance(group, step, pair) / least), float(distance(group, plain, pair) / least))


def without_procrustes(pair: Pair) -> acting.Move:
    """The move of the QR/SVD form alone: W_Kᵀ = Q_K R_K, W_Qᵀ = Q_Q R_Q, R_K R_Qᵀ = U Σ Vᵀ, S = Σ^½ Vᵀ R_Q^-ᵀ."""
    R_Q, R_K = torch.linalg.qr(pair.A.mT).R, torch.linalg.qr(pair.B.mT).R
    _, sigma, Vt = torch.linalg.svd(R_K @ R_Q.mT)
    return acting.move(sigma.sqrt()[:, None] * Vt @ torch.linalg.inv(R_Q).mT)


@lemma(
    "5.2.2",
    "The QR/SVD form W_Q' = Σ^½ V_Mᵀ Q_Qᵀ, W_K' = Σ^½ U_Mᵀ Q_Kᵀ is balanced, has the same product, and differs "
    "from the "
    "nearest balanced point by an orthogonal matrix alone",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="Q_K and Q_Q exchanged",
)
def qr_svd_form(trial: Trial) -> Finding:
    pair = weights(trial)
    group = Group(trial.size.D)
    Q_Q, R_Q = torch.linalg.qr(pair.A.mT)
    Q_K, R_K = torch.linalg.qr(pair.B.mT)
    U, sigma, Vt = torch.linalg.svd(R_K @ R_Q.mT)
    root = sigma.sqrt()[:, None]
    form = Pair(root * Vt @ Q_Q.mT, root * U.mT @ Q_K.mT)
    nearest = balanced(group, pair)
    # The Gram matrices WᵀW don't see the orthogonal factor, and nothing else.
    miss = largest(
        difference(product(form), product(pair)),
        charge_left(group, form),
        difference(form.A.mT @ form.A, nearest.A.mT @ nearest.A),
        difference(form.B.mT @ form.B, nearest.B.mT @ nearest.B),
    )
    exchanged = Pair(root * Vt @ Q_K.mT, root * U.mT @ Q_Q.mT)
    return Finding(0, miss, difference(product(exchanged), product(pair)))


@lemma(
    "5.2.2",
    "Rebalancing twice is rebalancing once: the second move is 1",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="the first move",
)
def rebalancing_is_idempotent(trial: Trial) -> Finding:
    worst, first = 0.0, 1.0
    for family, pair in layers(trial, "qkv"):
        eye = torch.eye(family.group.size, dtype=torch.float64).expand(1, family.groups, -1, -1)
        once = balancing.balance(family.group, pair).step
        twice = balancing.balance(family.group, acting.act(once, pair)).step
        worst = largest(worst, difference(twice.S, eye), difference(twice.S_inverse_T, eye))
        first = smallest(first, difference(once.S, eye))
    return Finding(0, worst, first)


@lemma(
    "5.2.2",
    "The balanced point has the least ‖W_Q‖² + ‖W_K‖² of the orbit: twice the nuclear norm of W_Kᵀ W_Q",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="the weights as they were",
)
def balanced_norm(trial: Trial) -> Finding:
    _, pair = trial.pair(trial.facts(""), "qk")
    least = 2 * torch.linalg.svdvals(product(pair)).sum(-1)
    after = pairs.squared_norm(balanced(Group(trial.size.D), pair))
    return Finding(0, difference(after, least), difference(pairs.squared_norm(pair), least))


@lemma(
    "5.2.2",
    "Wherever on the orbit one starts, the balanced point is the same up to an orthogonal matrix (up to "
    "rotations of the "
    "rotated pairs)",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="the starting points themselves",
)
def balanced_point_of_orbit(trial: Trial) -> Finding:
    worst, apart = 0.0, 1.0
    for rotary in (0, trial.size.D):
        family, pair = trial.pair(trial.facts("", rotary=rotary), "qk")
        other = acting.act(trial.element(family.group, 1, family.groups), pair)

        def seen(one: Pair, group: Group = family.group) -> Tensor:
            if not group.rotary:
                return one.A.mT @ one.A
            u = pairs.rotated_rows(group, one.A)
            return torch.einsum("...ja,...jb->...jab", u.conj(), u)

        here, there = balanced(family.group, pair), balanced(family.group, other)
        worst = largest(worst, float((seen(here) - seen(there)).norm() / seen(here).norm()))
        apart = smallest(apart, float((seen(pair) - seen(other)).norm() / seen(pair).norm()))
    return Finding(0, worst, apart)


@lemma(
    "5.2.2",
    "Balancing the bias-augmented pair makes what gradient flow conserves 0, and leaves the output",
    tolerance=BALANCING,
    reason=BY_BALANCING,
    counter="balancing the weights alone",
)
def augmented_rebalancing(trial: Trial) -> Finding:
    facts = trial.facts()
    family, roles, x = facts.pair("qk"), trial.roles(facts), trial.inputs()
    pair = gather_layer(family, roles)

    def left(step: acting.Move) -> float:
        return charge_left(family.group, pairs.augmented(family.group, acting.act(step, pair)))

    step = balancing.balance(family.group, pairs.augmented(family.group, pair)).step
    change = output_change(facts, moved(family, step, roles), roles, x)
    return Finding(0, largest(left(step), change), left(balancing.balance(family.group, pair).step))


@lemma(
    "5.2.2",
    "A pair whose product has lost rank is left as it is, and said to have no balanced point; others of the "
    "batch are moved",
    tolerance=BALANCING,
    reason=BY_BALANCING + "; the pair left alone keeps its bits",
    counter="the same pair at full rank",
)
def rebalancing_without_full_rank(trial: Trial) -> Finding:
    D, pair = trial.size.D, weights(trial, 2)
    plain, rotary, partly = Group(D), Group(D, D), Group(D, 2)
    less = torch.ones(2, D, 1, dtype=torch.float64)
    less[0, list(rotary.pairs[0])] = 0
    poor = Pair(less * pair.A, pair.B)
    less = torch.ones(2, D, 1, dtype=torch.float64)
    less[0, list(partly.pairs[0])] = 0
    poor_in_part = Pair(less * pair.A, pair.B)

    def miss(group: Group, one: Pair) -> float:
        found = balancing.balance(group, one)
        after = acting.act(found.step, one)
        # Rotated pairs of rows are balanced each by itself, so only the one that has lost its rank stays.
        rows = list(group.pairs[0]) if group.rotary else list(range(D))
        stays = float((after.A[0, rows] - one.A[0, rows]).norm() + (after.B[0, rows] - one.B[0, rows]).norm())
        flags = float(bool(found.exists[0]) or not bool(found.exists[1]))
        return flags + stays + charge_left(group, Pair(after.A[1], after.B[1]))

    worst = largest(miss(plain, poor), miss(rotary, poor), miss(partly, poor_in_part))
    return Finding(0, worst, miss(plain, pair))


@lemma(
    "5.2.2",
    "Gradients at the moved weights are (S⁻ᵀ g_Q, S g_K), biases alike: what is transported is what autograd "
    "finds there",
    tolerance=ROUNDING,
    reason="float64: epsilon × condition of S (≤ 4) × the terms of a gradient",
    counter="moved as weights are",
)
def gradients_are_contragredient(trial: Trial) -> Finding:
    worst, as_weights = 0.0, 1.0
    circuits: tuple[tuple[Circuit, int], ...] = (("qk", 0), ("qk", trial.size.D), ("ov", 0))
    for circuit, rotary in circuits:
        facts = trial.facts(rotary=rotary)
        family, roles = facts.pair(circuit), trial.roles(facts)
        step = trial.element(family.group, 1, family.groups)
        state = trial.generator.get_state()
        here = gather_layer(family, loss_gradients(trial, facts, roles))
        trial.generator.set_state(state)  # the same inputs and targets at both points
        there = gather_layer(family, loss_gradients(trial, facts, moved(family, step, roles)))
        size = pairs.squared_norm(there)

        def miss(found: Pair, there: Pair = there, size: Tensor = size) -> float:
            return float((pairs.squared_norm(pairs.difference(found, there)) / size).sqrt().max())

        worst = largest(worst, miss(transporting.transport(step, here)))
        as_weights = smallest(as_weights, miss(acting.act(step, here)))
    return Finding(0, worst, as_weights)


@lemma(
    "5.2.2",
    "Squares of gradients (Adam's second moments) move by the elementwise square of the map, exactly when S is "
    "diagonal",
    tolerance=ROUNDING,
    reason="float64: epsilon × squares",
    counter="a general S, where products of rows are missing",
)
def second_moments(trial: Trial) -> Finding:
    family, pair = trial.pair(trial.facts("qkv"), "qk")
    gradient = random_update(trial, pair)

    def squares(one: Pair) -> Pair:
        return one.each(Tensor.square)

    def miss(step: acting.Move) -> float:
        exact = squares(transporting.transport(step, gradient))
        found = transporting.transport_squares(step, squares(gradient))
        apart = pairs.squared_norm(pairs.difference(found, exact)) / pairs.squared_norm(exact)
        return float(apart.sqrt().max())

    stretch = 2 ** trial.normal(1, family.groups, trial.size.D)
    return Finding(
        0,
        miss(acting.move(torch.diag_embed(stretch))),
        miss(acting.move(trial.invertible(1, family.groups, trial.size.D))),
    )
