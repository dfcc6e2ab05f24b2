"""Sections 4.8–4.10: larger heads, rotary positions, grouped queries, and what a single head would need."""

from math import ceil, isqrt, sqrt

import torch
from torch import Tensor

from identcli.architecture.groups import Group, RotaryStyle
from identcli.architecture.pairs import Attention
from identcli.models.attention import Variant, rotations
from identcli.symmetry import act as acting
from identcli.symmetry.rank import numerical_rank
from identcli.theory.claim import Erratum, Finding, lemma
from identcli.theory.heads import multi_head
from identcli.theory.jacobian import layer_jacobian, nullity
from identcli.theory.trial import BY_ROUNDING, EXACT, ROUNDING, Trial, largest, moved, output_change

# Slow rotations are nearly none, so small layers use a small base and keep all frequencies apart.
FAST = Variant(base=10.0)


@lemma(
    "4.8.1",
    "Heads of any size D = C ≤ E leave the share D/(2E) unidentified: 1/2 at D = E (E, H = 4, 2; D = 3 and 4)",
    tolerance=1e-12,
    reason="a ratio of two whole numbers in float64",
    counter="1/(2H), the share of conventional heads",
)
def larger_heads(trial: Trial) -> Finding:
    E, H = 4, 2
    shares = [nullity(trial, Attention(1, H, H, E, D, D)) / (4 * H * D * E) for D in (3, 4)]
    return Finding(3 / 8 + 1 / 2, sum(shares), 2 / (2 * H))


@lemma(
    "4.8.1",
    "Heads larger than E add unidentified directions: 2DE − r(2E − r) per product with r = min(D, E) (E = 3, D = "
    "C = 4)",
    tolerance=0,
    reason=EXACT,
    counter="D² per product",
)
def heads_beyond_embedding(trial: Trial) -> Finding:
    E, D = 3, 4
    of_product = 2 * D * E - E * E
    return Finding(2 * of_product, nullity(trial, Attention(1, 1, 1, E, D, D)), 2 * D**2)


@lemma(
    "4.8.2",
    "With rotary positions a score depends on n − m alone: (R_m k)ᵀ(R_n q) = kᵀ R_{n−m} q",
    tolerance=ROUNDING,
    reason="float64: epsilon × the largest angle (about 10)",
    counter="R_{n+m} in place of R_{n−m}",
)
def relative_positions(trial: Trial) -> Finding:
    D = 2 * (trial.size.D // 2)
    R = rotations(8, D, D, "half", 10.0)
    q, k = trial.normal(D), trial.normal(D)
    score = (R[2] @ k) @ (R[5] @ q)
    return Finding(0, float(abs(k @ R[3] @ q - score) / abs(score)), float(abs(k @ R[7] @ q - score) / abs(score)))


def commutes(group: Group, with_: Group) -> float:
    """Largest ‖S R − R S‖ over a basis of the group and the rotations of another."""
    S = acting.basis(group)
    R = rotations(6, with_.size, with_.rotary, with_.style, 10.0)[:, None]
    return float((S @ R - R @ S).abs().max())


@lemma(
    "4.8.2",
    "What survives rotary positions is what commutes with every rotation: αR(θ) for each rotated pair of rows, in the "
    "half, the interleaved and the partial style",
    tolerance=ROUNDING,
    reason="float64: products of cosines and sines",
    counter="the pairs of the other style",
)
def rotary_commutant(trial: Trial) -> Finding:
    D = trial.size.D
    half, interleaved, partial = Group(D, D, "half"), Group(D, D, "interleaved"), Group(D, 2, "half")
    return Finding(0, largest(*[commutes(g, g) for g in (half, interleaved, partial)]), commutes(half, interleaved))


@lemma(
    "4.8.2",
    "Moving (W_Q, b_Q, W_K, b_K) by the rotary group leaves the output: half, interleaved, partial, one S per kv group",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="a general S of GL(D)",
)
def rotary_invariance(trial: Trial) -> Finding:
    D, changes = trial.size.D, []
    kinds: tuple[tuple[int, RotaryStyle], ...] = ((D, "half"), (D, "interleaved"), (2, "half"))
    for rotary, style in kinds:
        facts = trial.facts("qkvo", rotary=rotary, rotary_style=style)
        family, roles, x = facts.pair("qk"), trial.roles(facts), trial.inputs()
        after = moved(family, trial.element(family.group, 1, facts.kv_groups), roles)
        changes.append(output_change(facts, after, roles, x))
    general = moved(family, acting.move(trial.invertible(1, facts.kv_groups, D)), roles)
    return Finding(0, largest(*changes), output_change(facts, general, roles, x))


@lemma(
    "4.8.2",
    "Rotary positions leave D unidentified query-key parameters per head instead of D², also for D > E (E = 4, D = 4; "
    "E = 3, D = 4), in both styles",
    tolerance=0,
    reason=EXACT,
    counter="D² per head",
)
def rotary_dimension(trial: Trial) -> Finding:
    cases = [
        Attention(1, 1, 1, 4, 4, 1, rotary=4),
        Attention(1, 1, 1, 4, 4, 1, rotary=4, rotary_style="interleaved"),
        Attention(1, 1, 1, 3, 4, 1, rotary=4),
    ]
    # C = 1 leaves one scale of values against outputs.
    predicted = sum(facts.pair("qk").group.dimension + 1 for facts in cases)
    measured = sum(nullity(trial, facts, FAST, positions=7) for facts in cases)
    return Finding(predicted, measured, len(cases) * (16 + 1))


@lemma(
    "4.8.2",
    "Partial rotary positions leave d + (D − d)² for d rotated rows, and D − d more with a key bias (E = 6, D = "
    "5, d = 2)",
    tolerance=0,
    reason=EXACT,
    counter="d + (D − d)² with a key bias too",
)
def partial_rotary_dimension(trial: Trial) -> Finding:
    facts = Attention(1, 1, 1, 6, 5, 1, rotary=2)
    biased = Attention(1, 1, 1, 6, 5, 1, q_bias=True, k_bias=True, rotary=2)
    d = facts.pair("qk").group.dimension
    measured = nullity(trial, facts, FAST, 6) + nullity(trial, biased, FAST, 6)
    return Finding(2 * (d + 1) + 3, measured, 2 * (d + 1))


@lemma(
    "4.9",
    "With grouped queries one S per kv group leaves the output",
    tolerance=ROUNDING,
    reason=BY_ROUNDING,
    counter="another S for one query head of a group",
)
def grouped_invariance(trial: Trial) -> Finding:
    facts = trial.facts()
    family, roles, x = facts.pair("qk"), trial.roles(facts), trial.inputs()
    after = moved(family, acting.move(trial.invertible(1, facts.kv_groups, facts.qk_size)), roles)
    S = trial.invertible(facts.qk_size)
    odd = {name: role.clone() for name, role in after.items()}
    odd["W_Q"][0], odd["b_Q"][0] = S @ odd["W_Q"][0], S @ odd["b_Q"][0]
    return Finding(0, output_change(facts, after, roles, x), output_change(facts, odd, roles, x))


@lemma(
    "4.9",
    "Grouped queries leave G D² + G C² unidentified, with all biases G(D + C) more (E, H, G, D, C = 6, 2, 1, 3, 2)",
    tolerance=0,
    reason=EXACT,
    counter="H D² + H C², as if each head had its own",
)
def grouped_dimension(trial: Trial) -> Finding:
    E, H, G, D, C = 6, 2, 1, 3, 2
    plain, biased = Attention(1, H, G, E, D, C), Attention(1, H, G, E, D, C, True, True, True, True)
    predicted = 2 * (G * D**2 + G * C**2) + G * (D + C)
    measured = nullity(trial, plain) + nullity(trial, biased)
    return Finding(predicted, measured, 2 * (H * D**2 + H * C**2) + H * (D + C))


@lemma(
    "4.9",
    "Rotary positions and grouped queries together leave G D for queries and keys (E, H, G, D = 4, 2, 1, 4)",
    tolerance=0,
    reason=EXACT,
    counter="H D",
)
def grouped_rotary_dimension(trial: Trial) -> Finding:
    facts = Attention(1, 2, 1, 4, 4, 1, rotary=4)
    return Finding(4 + 1, nullity(trial, facts, FAST, positions=6), 8 + 1)


@lemma(
    "4.9",
    "Llama-2-70B (H = 64, G = 8, D = 128): G D = 1,024 unidentified query-key parameters a layer, H D² / G D = "
    "1,024 times "
    "fewer than without grouping and rotary positions",
    tolerance=0,
    reason=EXACT,
    counter="without rotary positions",
    erratum=Erratum(
        printed="“G D unidentified parameters …: factor of 8 difference: 8 × 128² = 131,072 versus 1,048,576”",
        why="8 × 128² is G D², the count without rotary positions; G D = 1,024, and H D² over it is 1,024 and not "
        "{printed:.0f}. The values add G C² = 131,072 that rotary positions don't touch.",
        right="G D = 1,024 against H D² = 1,048,576: a factor of 1,024; 132,096 with the value-output products",
    ),
)
def llama_2_70b(trial: Trial) -> Finding:
    facts = Attention(1, 64, 8, 8192, 128, 128, rotary=128)
    without = facts.heads * Group(facts.qk_size).dimension
    rotary = facts.kv_groups * facts.pair("qk").group.dimension
    grouped = facts.kv_groups * Group(facts.qk_size).dimension
    return Finding(1024, without / rotary if rotary == 1024 else -1, without / grouped, 8)


@lemma(
    "4.9",
    "Llama-2-70B: 132,096 of 150,994,944 attention parameters a layer are unidentified, values and outputs included",
    tolerance=0,
    reason=EXACT,
    counter="query-key products alone",
)
def llama_2_70b_layer(trial: Trial) -> Finding:
    facts = Attention(1, 64, 8, 8192, 128, 128, rotary=128)
    qk, ov = (facts.kv_groups * facts.pair(circuit).group.dimension for circuit in ("qk", "ov"))
    numbers = 2 * (facts.heads + facts.kv_groups) * 128 * 8192
    return Finding(132_096, qk + ov if numbers == 150_994_944 else -1, qk)


@lemma(
    "4.10",
    "A single head with square W_V identifies 2D₀E₀ − D₀² + E₀² parameters (E₀ = 5, D₀ = 3)",
    tolerance=0,
    reason=EXACT,
    counter="2D₀E₀ + E₀², all of them",
)
def single_head_identified(trial: Trial) -> Finding:
    E, D = 5, 3
    facts = Attention(1, 1, 1, E, D, E)
    roles = trial.roles(facts)
    J = layer_jacobian(trial, facts, roles)
    inputs = J[:, : 2 * D * E + E * E]  # W_Q, W_K, W_V: the output matrix is fixed, as if there were none
    return Finding(2 * D * E - D**2 + E**2, numerical_rank(inputs).rank, 2 * D * E + E**2)


@lemma(
    "4.10",
    "A layer of H heads identifies 4EHD − 2HD² parameters (E, H, D = 4, 2, 2)",
    tolerance=0,
    reason=EXACT,
    counter="4EHD, all of them",
)
def multi_head_identified(trial: Trial) -> Finding:
    E, H, D = 4, 2, 2
    return Finding(4 * E * H * D - 2 * H * D**2, 4 * E * H * D - nullity(trial, multi_head(E, H)), 4 * E * H * D)


@lemma(
    "4.10",
    "The least single head with D₀ = E₀ that identifies as much has E₀ = ⌈E √(2 − 1/H)⌉, for every E ≤ 120 and H "
    "that divides it",
    tolerance=0,
    reason=EXACT,
    counter="⌊E √(2 − 1/H)⌋",
)
def equivalent_width(trial: Trial) -> Finding:
    cases = [(E, H) for E in range(1, 121) for H in range(1, E + 1) if E % H == 0]
    hits = floors = 0
    for E, H in cases:
        needed = 4 * E * E - 2 * E * E // H
        least = isqrt((needed + 1) // 2 - 1) + 1  # the least E₀ with 2E₀² ≥ needed
        root = E * sqrt(2 - 1 / H)
        # A root that is whole in truth may come out an epsilon above it.
        hits += least == ceil(root - 1e-9)
        floors += least == int(root)
    return Finding(len(cases), hits, floors)


@lemma(
    "4.10",
    "At the same E no D₀ = ηE identifies as much: η = 1 ± √(2/H − 2) is real for H = 1 alone",
    tolerance=1e-12,
    reason="a rational number in float64",
    counter="two heads matched by η = 2",
)
def no_equivalent_head_size(trial: Trial) -> Finding:
    def shortfall(eta: Tensor | float, H: int) -> Tensor | float:
        return (4 - 2 / H) - (1 + 2 * eta - eta**2)

    best = torch.linspace(0, 2, 2001, dtype=torch.float64)
    # The quadratic is greatest at η = 1, where H heads are ahead by 2 − 2/H of E².
    gap = float(torch.as_tensor(shortfall(best, 3)).min())
    return Finding(2 - 2 / 3, gap + abs(float(shortfall(1.0, 1))), float(shortfall(2.0, 2)))
