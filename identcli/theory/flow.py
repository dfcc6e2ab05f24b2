"""Section 5.1, first half: what gradient flow conserves, and what a step of a given size does to it."""

from collections.abc import Callable

import torch
from torch import Tensor

from identcli.architecture.pairs import Attention, Circuit, PairFamily
from identcli.models.attention import attention
from identcli.symmetry import charge as charging
from identcli.symmetry import pair as pairs
from identcli.symmetry import project as projecting
from identcli.symmetry.pair import Pair
from identcli.theory.biases import loss_gradients
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.products import product
from identcli.theory.trial import EXACT, ROUNDING, Roles, Trial, difference, gather_layer, largest, smallest

BY_CANCELLING = "float64: epsilon × the terms that cancel"


def layer(trial: Trial, circuit: Circuit, rotary: int = 0) -> tuple[PairFamily, Pair, Pair]:
    """A random biased layer: the family of a circuit, its pair and the pair of loss gradients."""
    facts = trial.facts(rotary=rotary)
    family, roles = facts.pair(circuit), trial.roles(facts)
    return family, gather_layer(family, roles), gather_layer(family, loss_gradients(trial, facts, roles))


def stepped(pair: Pair, gradient: Pair, lr: float, decay: float = 0.0, decay_biases: bool = False) -> Pair:
    """One step of gradient descent; decay is decoupled: W -> (1 − lr·decay) W − lr g."""
    shrink = 1 - lr * decay

    def moved(W: Tensor | None, g: Tensor | None, keep: float) -> Tensor | None:
        return None if W is None or g is None else keep * W - lr * g

    of_bias = shrink if decay_biases else 1.0
    return Pair(
        shrink * pair.A - lr * gradient.A,
        shrink * pair.B - lr * gradient.B,
        moved(pair.a, gradient.a, of_bias),
        moved(pair.b, gradient.b, of_bias),
    )


def conserved(family: PairFamily, pair: Pair) -> Tensor:
    """The charge of the bias-augmented pair: what gradient flow conserves."""
    return charging.charge(family.group, pairs.augmented(family.group, pair))


@lemma(
    "5.1",
    "∂L/∂W_Q = W_K G and ∂L/∂W_K = W_Q Gᵀ with G the gradient by the product W_Kᵀ W_Q",
    tolerance=ROUNDING,
    reason=BY_CANCELLING,
    counter="∂L/∂W_K = W_Q G",
)
def gradients_share_a_factor(trial: Trial) -> Finding:
    D, E = trial.size.D, trial.size.E
    A, B = trial.normal(D, E).requires_grad_(), trial.normal(D, E).requires_grad_()
    M = product(Pair(A, B))
    M.retain_grad()
    (M * trial.normal(E, E)).sin().sum().backward()
    assert A.grad is not None
    assert B.grad is not None
    assert M.grad is not None
    # M = BᵀA has keys on its rows, so the factors are W_K G and W_Q Gᵀ.
    miss = largest(difference(B.detach() @ M.grad, A.grad), difference(A.detach() @ M.grad.mT, B.grad))
    return Finding(0, miss, difference(A.detach() @ M.grad, B.grad))


@lemma(
    "5.1",
    "The gradient of a loss has no part in the unidentified space: ρ = 0 for queries and keys with biases, in "
    "plain and "
    "rotary layers, and for values and outputs",
    tolerance=1e-24,
    reason="ρ is a squared share: (float64 epsilon × condition, 1e-13)², times the D² directions",
    counter="the sign of that gradient, which Adam's first step follows",
)
def gradient_has_no_share(trial: Trial) -> Finding:
    worst, of_sign = 0.0, 1.0
    layers: tuple[tuple[Circuit, int], ...] = (("qk", 0), ("qk", trial.size.D), ("qk", 2), ("ov", 0))
    for circuit, rotary in layers:
        family, pair, gradient = layer(trial, circuit, rotary=rotary)
        signs = Pair(*(None if g is None else g.sign() for g in gradient))  # type: ignore[arg-type]
        share = projecting.unidentified_share_with_biases
        worst = largest(worst, float(share(family.group, pair, gradient).max()))
        of_sign = smallest(of_sign, float(share(family.group, pair, signs).min()))
    return Finding(0, worst, of_sign)


@lemma(
    "5.1",
    "The paper's ρ, of the weights alone, is 0 for a loss gradient when there are no biases",
    tolerance=1e-24,
    reason="ρ is a squared share: (float64 epsilon × condition, 1e-13)², times the D² directions",
    counter="the same with trained query biases left out of it",
)
def gradient_has_no_share_without_biases(trial: Trial) -> Finding:
    def share(biases: str) -> float:
        facts = trial.facts(biases)
        family, roles = facts.pair("qk"), trial.roles(facts)
        gradient = gather_layer(family, loss_gradients(trial, facts, roles))
        return float(projecting.unidentified_share(family.group, gather_layer(family, roles), gradient).max())

    return Finding(0, share(""), share("qk"))


def flow_rate(family: PairFamily, pair: Pair, gradient: Pair, of: Callable[[Pair], Tensor]) -> float:
    """d/dt of a quadratic function under gradient flow, over its size: a central difference, exact for it."""
    ahead, behind = stepped(pair, gradient, 0.5), stepped(pair, gradient, -0.5)
    norm = (pairs.squared_norm(pair) * pairs.squared_norm(gradient)).sqrt()
    return float(((of(ahead) - of(behind)).flatten(2).norm(dim=-1) / norm).max())


@lemma(
    "5.1",
    "Gradient flow conserves [W_Q b_Q][W_Q b_Q]ᵀ − W_K W_Kᵀ per kv group; with rotary positions |u_j|² − |v_j|² "
    "of each "
    "rotated pair of rows; for values [W_V b_V][W_V b_V]ᵀ − Σ_h W_O^hᵀ W_O^h",
    tolerance=ROUNDING,
    reason=BY_CANCELLING,
    counter="the weights alone, without the trained query bias",
    erratum=Erratum(
        printed="“W_Q W_Qᵀ − W_K W_Kᵀ is an invariant under gradient flow for a differentiable loss”",
        why="not with a trained query bias: it moves at {printed:.2g} of ‖W‖‖g‖, as b_Q b_Qᵀ makes up for it. Nor with "
        "rotary positions, where only |u_j|² − |v_j|² of each rotated pair of rows is conserved. The paper's own runs "
        "train biases, so their β isn't exactly conserved by the flow.",
        right="[W_Q b_Q][W_Q b_Q]ᵀ − W_K W_Kᵀ without rotary positions (b_K, which doesn't move, may be in or out)",
    ),
)
def conserved_by_flow(trial: Trial) -> Finding:
    worst = 0.0
    layers: tuple[tuple[Circuit, int], ...] = (("qk", 0), ("qk", trial.size.D), ("qk", 2), ("ov", 0))
    for circuit, rotary in layers:
        family, pair, gradient = layer(trial, circuit, rotary=rotary)
        worst = largest(worst, flow_rate(family, pair, gradient, lambda p, f=family: conserved(f, p)))  # type: ignore[misc]
    family, pair, gradient = layer(trial, "qk")
    unbiased = flow_rate(family, pair, gradient, charging.imbalance)
    return Finding(0, worst, unbiased, unbiased)


@lemma(
    "5.1",
    "With rotary positions the rest of W_Q W_Qᵀ − W_K W_Kᵀ is not conserved",
    relation="≥",
    tolerance=0,
    reason="what isn't conserved moves at 1e-2 to 1 of ‖W‖‖g‖, what is at 1e-15; 1e-3 divides them",
    counter="its charge, |u_j|² − |v_j|² per rotated pair",
)
def rotary_imbalance_moves(trial: Trial) -> Finding:
    family, pair, gradient = layer(trial, "qk", rotary=trial.size.D)
    whole = flow_rate(family, pair, gradient, lambda p: charging.imbalance(pairs.augmented(family.group, p)))
    return Finding(1e-3, whole, flow_rate(family, pair, gradient, lambda p: conserved(family, p)))


@lemma(
    "5.1",
    "One step of gradient descent changes C by lr²(g_A g_Aᵀ − g_B g_Bᵀ), exactly, on the bias-augmented pair",
    tolerance=1e-11,
    reason="float64: epsilon × C over its change (about 1e3)",
    counter="the same formula on the weights alone",
)
def change_by_one_step(trial: Trial) -> Finding:
    lr, miss = 0.1, 0.0
    for circuit in ("qk", "ov"):
        family, pair, gradient = layer(trial, circuit)
        after = stepped(pair, gradient, lr)
        predicted = lr**2 * conserved(family, gradient)
        miss = largest(miss, difference(conserved(family, after) - conserved(family, pair), predicted))
        if circuit == "qk":
            alone = charging.imbalance(after) - charging.imbalance(pair)
            counter = difference(alone, lr**2 * charging.imbalance(gradient))
    return Finding(0, miss, counter)


@lemma(
    "5.1",
    "The change of C by one step is of second order: halving lr divides it by 4",
    tolerance=1e-6,
    reason="float64: epsilon × C over its change at the smaller step (about 1e4), with room for 1e5",
    counter="a step along the signs of the gradient: divided by 2",
)
def drift_is_second_order(trial: Trial) -> Finding:
    family, pair, gradient = layer(trial, "qk")

    def ratio(direction: Pair) -> float:
        whole, half = (conserved(family, stepped(pair, direction, lr)) - conserved(family, pair) for lr in (1e-2, 5e-3))
        return float(whole.norm() / half.norm())

    signs = Pair(*(None if g is None else g.sign() for g in gradient))  # type: ignore[arg-type]
    return Finding(4, ratio(gradient), ratio(signs))


@lemma(
    "5.1",
    "With decay λ of weights and biases C' = (1 − lr λ)² C + lr²(g_A g_Aᵀ − g_B g_Bᵀ)",
    tolerance=ROUNDING,
    reason=BY_CANCELLING,
    counter="C' = (1 − lr λ) C + …, the factor not squared",
)
def decay_of_everything(trial: Trial) -> Finding:
    family, pair, gradient = layer(trial, "qk")
    lr, decay = 0.1, 0.5
    after = conserved(family, stepped(pair, gradient, lr, decay, decay_biases=True))
    C, step = conserved(family, pair), lr**2 * conserved(family, gradient)
    t = 1 - lr * decay
    return Finding(0, difference(t**2 * C + step, after), difference(t * C + step, after))


@lemma(
    "5.1",
    "With decay λ of the weights alone C' = t² C_W + b_Q b_Qᵀ − lr²λ(g_b b_Qᵀ + b_Q g_bᵀ) + lr²(g_A g_Aᵀ − g_B g_Bᵀ), "
    "t = 1 − lr λ, C_W without the bias",
    tolerance=ROUNDING,
    reason=BY_CANCELLING,
    counter="t² of the whole C",
)
def decay_of_weights(trial: Trial) -> Finding:
    family, pair, gradient = layer(trial, "qk")
    lr, decay = 0.1, 0.5
    t = 1 - lr * decay
    b, g_b = pair.a, gradient.a
    assert b is not None
    assert g_b is not None
    after = conserved(family, stepped(pair, gradient, lr, decay)).reshape(*charging.imbalance(pair).shape)
    step = lr**2 * conserved(family, gradient).reshape(after.shape)
    cross = lr**2 * decay * (g_b @ b.mT + b @ g_b.mT)
    formula = t**2 * charging.imbalance(pair) + b @ b.mT - cross + step
    whole = t**2 * conserved(family, pair).reshape(after.shape) + step
    return Finding(0, difference(formula, after), difference(whole, after))


def integrate(roles: Roles, velocity: Callable[[Roles], Roles], time: float, steps: int) -> Roles:
    """Runge-Kutta of fourth order."""

    def ahead(by: float, slope: Roles) -> Roles:
        return {name: role + by * slope[name] for name, role in roles.items()}

    h = time / steps
    for _ in range(steps):
        k1 = velocity(roles)
        k2 = velocity(ahead(h / 2, k1))
        k3 = velocity(ahead(h / 2, k2))
        k4 = velocity(ahead(h, k3))
        roles = {
            name: role + h / 6 * (k1[name] + 2 * k2[name] + 2 * k3[name] + k4[name]) for name, role in roles.items()
        }
    return roles


@lemma(
    "5.1",
    "Along gradient flow (Runge-Kutta) C of the bias-augmented pair stays (its change over that of the weights' C)",
    tolerance=1e-3,
    reason="8 steps of 1/8 and fourth order: an error of (1/8)⁴ × a constant below 1 for weights of this size",
    counter="C of the weights alone",
)
def flow_keeps_charge(trial: Trial) -> Finding:
    facts = Attention(1, 2, 1, 5, 2, 2, True, True, True, True)
    # Gentle weights, so that a few large steps follow the flow closely.
    family, roles, x = (
        facts.pair("qk"),
        {name: role / 2 for name, role in trial.roles(facts).items()},
        trial.inputs()[..., :5],
    )
    target = trial.normal(*x.shape)

    def velocity(at: Roles) -> Roles:
        leaves = {name: role.clone().requires_grad_() for name, role in at.items()}
        loss = (attention(facts, leaves, x) - target).square().mean()
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        return {name: -slope for name, slope in zip(leaves, slopes, strict=True)}

    before, after = gather_layer(family, roles), gather_layer(family, integrate(roles, velocity, 1.0, 8))
    kept = float((conserved(family, after) - conserved(family, before)).norm())
    alone = float((charging.imbalance(after) - charging.imbalance(before)).norm())
    return Finding(0, kept / alone, 1)


@lemma(
    "5.1",
    "β = ‖C‖_F is the norm of the charge of GL(D), and τ = tr C its trace",
    tolerance=ROUNDING,
    reason="float64: epsilon × sums of DE terms",
    counter="‖W_Q W_Qᵀ‖_F − ‖W_K W_Kᵀ‖_F",
)
def beta_and_tau(trial: Trial) -> Finding:
    facts = trial.facts("")
    family, pair = trial.pair(facts, "qk")
    of_A, of_B = pair.A @ pair.A.mT, pair.B @ pair.B.mT
    beta = (of_A - of_B).flatten(2).norm(dim=-1)
    tau = (of_A - of_B).diagonal(dim1=-2, dim2=-1).sum(-1)
    charge = charging.charge(family.group, pair)
    miss = largest(
        difference(charge.norm(dim=-1), beta),
        difference(charging.imbalance(pair).flatten(2).norm(dim=-1), beta),
        difference(charging.trace(charging.grams(pair)), tau),
    )
    return Finding(0, miss, difference(of_A.flatten(2).norm(dim=-1) - of_B.flatten(2).norm(dim=-1), beta))


@lemma(
    "5.1",
    "The charge has D² numbers without rotary positions, D/2 with them, d/2 + (D − d)² with d rotated rows",
    tolerance=0,
    reason=EXACT,
    counter="D² in all three",
)
def size_of_charge(trial: Trial) -> Finding:
    D, found = trial.size.D, 0
    for rotary in (0, D, 2):
        family, pair = trial.pair(trial.facts("", rotary=rotary), "qk")
        found += charging.charge(family.group, pair).shape[-1]
    return Finding(D**2 + D // 2 + 1 + (D - 2) ** 2, found, 3 * D**2)


@lemma(
    "5.1",
    "β and τ don't see to first order an update (S W_Q, S W_K) with antisymmetric S: it turns C and keeps its size",
    tolerance=1e-8,
    reason="central difference with steps of 1e-4: rounding epsilon/1e-4 = 2e-12, times D² entries",
    counter="the same step with symmetric S",
)
def beta_is_blind_to_rotations(trial: Trial) -> Finding:
    D = trial.size.D
    pair, S, h = Pair(trial.normal(D, trial.size.E), trial.normal(D, trial.size.E)), trial.normal(D, D), 1e-4

    def rate(X: Tensor) -> float:
        ahead, behind = (charging.imbalance(Pair(pair.A + t * X @ pair.A, pair.B + t * X @ pair.B)) for t in (h, -h))
        of_beta, of_tau = ahead.norm() - behind.norm(), ahead.trace() - behind.trace()
        return float((abs(of_beta) + abs(of_tau)) / (2 * h * charging.imbalance(pair).norm() * X.norm()))

    return Finding(0, rate(S - S.mT), rate(S + S.mT))
