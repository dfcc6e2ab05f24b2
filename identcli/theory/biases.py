"""Sections 4.6 and 4.7: biases that move with their weights, biases that nothing sees, and what makes them visible."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from identcli.architecture.pairs import Attention
from identcli.models.attention import PLAIN, Variant, attention, scores
from identcli.symmetry import act as acting
from identcli.symmetry import pair as pairs
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.heads import multi_head
from identcli.theory.jacobian import layer_rank, nullity
from identcli.theory.trial import BY_ROUNDING, EXACT, ROUNDING, Roles, Trial, difference, largest, moved, output_change

VISIBLE = 1e-3
BY_SIZE = "a change of O(1) that is seen at all moves outputs by 1e-2 to 1; one that isn't by 1e-15. 1e-3 divides them"


@lemma(
    "4.6",
    "(W_K X + b_K 1ᵀ)ᵀ(W_Q X + b_Q 1ᵀ) = XᵀW_KᵀW_Q X + XᵀW_Kᵀb_Q 1ᵀ + 1 b_KᵀW_Q X + b_Kᵀb_Q 1 1ᵀ",
    tolerance=ROUNDING,
    reason="float64: epsilon × sums of E terms",
    counter="the term with b_Q left out",
)
def bias_expansion(trial: Trial) -> Finding:
    s = trial.size
    W_Q, W_K, b_Q, b_K = trial.normal(s.D, s.E), trial.normal(s.D, s.E), trial.normal(s.D, 1), trial.normal(s.D, 1)
    X, ones = trial.normal(s.E, s.T), torch.ones(s.T, 1, dtype=torch.float64)
    whole = (W_K @ X + b_K @ ones.mT).mT @ (W_Q @ X + b_Q @ ones.mT)
    with_b_Q = X.mT @ W_K.mT @ b_Q @ ones.mT
    terms = X.mT @ W_K.mT @ W_Q @ X + with_b_Q + ones @ b_K.mT @ W_Q @ X + (b_K.mT @ b_Q) * ones @ ones.mT
    return Finding(0, difference(terms, whole), difference(terms - with_b_Q, whole))


@lemma(
    "4.6",
    "(S W_Q, S b_Q, S⁻ᵀ W_K, S⁻ᵀ b_K) gives the same scores, one S per kv group",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="b_Q left behind",
)
def qk_invariance_with_biases(trial: Trial) -> Finding:
    facts = trial.facts()
    family, roles, x = facts.pair("qk"), trial.roles(facts), trial.inputs()
    after = moved(family, acting.move(trial.invertible(1, facts.kv_groups, facts.qk_size)), roles)
    before = scores(facts, roles, x)
    left = {**after, "b_Q": roles["b_Q"]}
    return Finding(0, difference(scores(facts, after, x), before), difference(scores(facts, left, x), before))


@lemma(
    "4.6",
    "A query bias adds no unidentified parameter and removes none: still D² per head, with H C² for values (E, H "
    "= 4, 2)",
    tolerance=0,
    reason=EXACT,
    counter="with key biases too: D more per head",
)
def query_bias_is_identified(trial: Trial) -> Finding:
    return Finding(16, nullity(trial, multi_head(4, 2, "q")), nullity(trial, multi_head(4, 2, "qk")))


@lemma(
    "4.7.1",
    "Softmax is unchanged by a constant added to all scores of a query",
    tolerance=ROUNDING,
    reason="float64: epsilon × the size of the constant (about 1 to 10)",
    counter="a constant for each key instead",
)
def softmax_shift(trial: Trial) -> Finding:
    s, shift = trial.normal(trial.size.T, trial.size.T), 3 * trial.normal(trial.size.T, 1)
    P = s.softmax(-1)
    return Finding(0, difference((s + shift).softmax(-1), P), difference((s + shift.mT).softmax(-1), P))


@dataclass(frozen=True)
class Setting:
    """A kind of attention layer with the parameters it needs beside the usual ones."""

    facts: Attention
    variant: Variant = PLAIN
    extra: Roles = field(default_factory=dict)

    def change(self, roles: Roles, x: Tensor, shifts: Roles) -> float:
        """Relative change of the output when roles are shifted."""
        before = {**roles, **self.extra}
        after = {**before, **{name: before[name] + shift for name, shift in shifts.items()}}
        return output_change(self.facts, after, before, x, self.variant)


def setting(trial: Trial, kind: str) -> Setting:
    """One of the kinds of layer by which the section's statements are judged."""
    s, facts = trial.size, trial.facts()
    if kind == "full":
        return Setting(facts, Variant(causal=False))
    if kind == "score bias":
        return Setting(facts, Variant(score_bias=trial.normal(s.H, s.T, s.T)))
    if kind == "dropout":
        kept = torch.rand(s.H, s.T, s.T, generator=trial.generator, dtype=torch.float64) < 0.7
        kept[..., 0] = kept[..., 1] = True  # every query keeps a key, and one must go, or the mask does nothing
        kept[..., -1, -1] = False
        return Setting(facts, Variant(keep=kept / 0.7))
    if kind == "rotary":
        return Setting(trial.facts(rotary=s.D))
    if kind == "qk-norm":
        return Setting(
            facts, Variant(qk_norm=True), {"g_Q": 1 + trial.normal(s.D) / 4, "g_K": 1 + trial.normal(s.D) / 4}
        )
    if kind == "softcap":
        return Setting(facts, Variant(softcap=1.0))
    if kind == "sink":
        return Setting(facts, Variant(sink=True), {"sink": trial.normal(s.H)})
    return Setting(facts)


def key_shift(trial: Trial, kind: str) -> float:
    """Change of the output when b_K moves by O(1)."""
    there = setting(trial, kind)
    roles, x = trial.roles(there.facts), trial.inputs()
    return there.change(roles, x, {"b_K": trial.normal(there.facts.kv_groups, there.facts.qk_size)})


@lemma(
    "4.7.1",
    "Without rotary positions, QK-norm, softcap or sinks the key bias has no effect: causal, full, with score biases "
    "(ALiBi), with attention dropout",
    tolerance=ROUNDING,
    reason="float64: epsilon × the size of the scores",
    counter="with rotary positions",
    erratum=Erratum(
        printed="“bias terms related to the key values are irrelevant in any Softmax-based attention head”",
        why="the shift b_Kᵀ q of a query's scores is the same for all keys only while nothing between the "
        "product and the "
        "softmax depends on the key. With rotary positions b_Kᵀ R_{{n−m}} q depends on the key's position m: an O(1) "
        "change of b_K moves the output by {printed:.0%} of its norm. QK-norm, softcap and sinks break it as well.",
        right="irrelevant without rotary positions, QK-norm, softcap and sinks; with partial rotary positions its "
        "unrotated rows are",
    ),
)
def key_bias_irrelevant(trial: Trial) -> Finding:
    kinds = ("causal", "full", "score bias", "dropout")
    rotary = key_shift(trial, "rotary")
    return Finding(0, largest(*[key_shift(trial, kind) for kind in kinds]), rotary, rotary)


@lemma(
    "4.7.1",
    "With rotary positions the key bias has an effect",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without rotary positions",
)
def key_bias_with_rotary(trial: Trial) -> Finding:
    return Finding(VISIBLE, key_shift(trial, "rotary"), key_shift(trial, "causal"))


@lemma(
    "4.7.1",
    "With QK-norm the key bias has an effect",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without QK-norm",
)
def key_bias_with_qk_norm(trial: Trial) -> Finding:
    return Finding(VISIBLE, key_shift(trial, "qk-norm"), key_shift(trial, "causal"))


@lemma(
    "4.7.1",
    "With a softcap on the scores the key bias has an effect",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without softcap",
)
def key_bias_with_softcap(trial: Trial) -> Finding:
    return Finding(VISIBLE, key_shift(trial, "softcap"), key_shift(trial, "causal"))


@lemma(
    "4.7.1",
    "With a sink logit the key bias has an effect",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without a sink",
)
def key_bias_with_sink(trial: Trial) -> Finding:
    return Finding(VISIBLE, key_shift(trial, "sink"), key_shift(trial, "causal"))


@lemma(
    "4.7.1",
    "With partial rotary positions the rows of b_K that no position rotates have no effect",
    tolerance=ROUNDING,
    reason="float64: epsilon × the size of the scores",
    counter="shifting a rotated row",
)
def key_bias_partly_rotary(trial: Trial) -> Finding:
    facts = trial.facts(rotary=2)
    roles, x = trial.roles(facts), trial.inputs()
    shift = trial.normal(facts.kv_groups, facts.qk_size)
    free, bound = shift.clone(), shift.clone()
    free[:, : facts.rotary], bound[:, facts.rotary :] = 0, 0
    there = Setting(facts)
    return Finding(0, there.change(roles, x, {"b_K": free}), there.change(roles, x, {"b_K": bound}))


def loss_gradients(trial: Trial, facts: Attention, roles: Roles, variant: Variant = PLAIN) -> Roles:
    """Gradients of ‖output − target‖²/2 for a random target by every role, with autograd."""
    x = trial.inputs()
    leaves = {name: role.clone().requires_grad_() for name, role in roles.items()}
    y = attention(facts, leaves, x, variant)
    ((y - trial.normal(*y.shape)).square().sum() / 2).backward()
    return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


@lemma(
    "4.7.1",
    "The loss has a zero gradient by b_K, beside that by b_Q",
    tolerance=ROUNDING,
    reason="float64: epsilon × the number of terms that cancel",
    counter="the same with rotary positions",
)
def key_bias_gradient(trial: Trial) -> Finding:
    def share(rotary: int) -> float:
        facts = trial.facts(rotary=rotary)
        g = loss_gradients(trial, facts, trial.roles(facts))
        return float(g["b_K"].norm() / g["b_Q"].norm())

    return Finding(0, share(0), share(trial.size.D))


@lemma(
    "4.7.1",
    "An update of b_K alone lies wholly in the unidentified space; with rotary positions only its unrotated rows do",
    tolerance=ROUNDING,
    reason="float64: epsilon × D terms",
    counter="counting the rotated rows as well",
)
def key_bias_energy(trial: Trial) -> Finding:
    facts = trial.facts(rotary=2)
    miss, whole = 0.0, 1.0
    for one in (trial.facts(), facts):
        family, pair = trial.pair(one, "qk")
        update = pairs.Pair(0 * pair.A, 0 * pair.B, None, trial.normal(*pair.B.shape[:-1], 1))
        assert update.b is not None
        free = update.b[..., one.rotary :, 0].square().sum(-1)
        whole = float((update.b.square().sum() / free.sum()) - 1)
        miss = largest(miss, float((pairs.null_energy(family.group, update) / free - 1).abs().max()))
    return Finding(0, miss, whole)


def value_shift(trial: Trial, kind: str, fold: bool = True) -> float:
    """Change of the output when b_V moves by c of O(1) and, with `fold`, b_O by −Σ_h W_O^h c."""
    there = setting(trial, kind)
    roles, x = trial.roles(there.facts), trial.inputs()
    c = trial.normal(there.facts.kv_groups, there.facts.v_size)
    per_head = c.repeat_interleave(there.facts.heads // there.facts.kv_groups, dim=0)
    into_output = torch.einsum("hc,hce->e", per_head, roles["W_O"])
    return there.change(roles, x, {"b_V": c, "b_O": -into_output} if fold else {"b_V": c})


@lemma(
    "4.7.2",
    "b_V + c with b_O − Σ_h W_O^h c gives the same output, also with rotary positions, QK-norm, softcap and "
    "score biases",
    tolerance=ROUNDING,
    reason="float64: epsilon × sums of HC terms; rows of P sum to 1",
    counter="b_V + c alone, as if there were no b_O",
    erratum=Erratum(
        printed="“bias related to value projections are irrelevant in any multi-head attention head”; “we never "
        "have to "
        "include … HC value biases”",
        why="only an output bias can take it over: b_V + c alone moves the output by {printed:.0%} of its norm. "
        "And the "
        "rows of P must sum to 1, which attention dropout in training and sinks break.",
        right="irrelevant beside an output bias, without attention dropout and sinks; without b_O it is identified "
        "(for HC ≤ E)",
    ),
)
def value_bias_irrelevant(trial: Trial) -> Finding:
    kinds = ("causal", "full", "score bias", "rotary", "qk-norm", "softcap")
    alone = value_shift(trial, "causal", fold=False)
    return Finding(0, largest(*[value_shift(trial, kind) for kind in kinds]), alone, alone)


@lemma(
    "4.7.2",
    "With attention dropout the trade of b_V against b_O changes the output",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without dropout",
)
def value_bias_with_dropout(trial: Trial) -> Finding:
    return Finding(VISIBLE, value_shift(trial, "dropout"), value_shift(trial, "causal"))


@lemma(
    "4.7.2",
    "With a sink logit the trade of b_V against b_O changes the output",
    relation="≥",
    tolerance=0,
    reason=BY_SIZE,
    counter="the same layer without a sink",
)
def value_bias_with_sink(trial: Trial) -> Finding:
    return Finding(VISIBLE, value_shift(trial, "sink"), value_shift(trial, "causal"))


@lemma(
    "4.7.2",
    "Without an output bias b_V is fully identified while HC ≤ E (E, H = 4, 2: 16 unidentified as without b_V)",
    tolerance=0,
    reason=EXACT,
    counter="with an output bias: HC more",
)
def value_bias_without_output_bias(trial: Trial) -> Finding:
    return Finding(16, nullity(trial, multi_head(4, 2, "v")), nullity(trial, multi_head(4, 2, "vo")))


@lemma(
    "4.7",
    "With all four biases 2E of them are unidentified, HD of b_K and HC of b_V: 2E²/H + 2E in all (E, H = 4, 2)",
    tolerance=0,
    reason=EXACT,
    counter="with rotary positions b_K is identified, and of GL(D) a 2 × 2 rotation and scale remain",
)
def unidentified_with_biases(trial: Trial) -> Finding:
    E, H = 4, 2
    facts = multi_head(E, H, "qkvo")
    rotary = Attention(1, H, H, E, 2, 2, True, True, True, True, rotary=2)
    rank = layer_rank(trial, rotary, trial.roles(rotary), Variant(base=10.0))
    return Finding(2 * E**2 // H + 2 * E, nullity(trial, facts), rank.nullity)


@lemma(
    "4.7.1",
    "With rotary positions b_K must move with W_K, by S⁻ᵀ",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="b_K left behind, which is harmless without rotary positions",
)
def key_bias_moves(trial: Trial) -> Finding:
    facts = trial.facts("qk", rotary=trial.size.D)
    family, roles, x = facts.pair("qk"), trial.roles(facts), trial.inputs()
    after = moved(family, trial.element(family.group, 1, facts.kv_groups), roles)
    left = {**after, "b_K": roles["b_K"]}
    return Finding(0, output_change(facts, after, roles, x), output_change(facts, left, roles, x))
