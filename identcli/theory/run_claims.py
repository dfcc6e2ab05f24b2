"""What the paper reports of its training runs (5.2, 5.3), judged by what one run has stored.

A statement is decided only by a run of the case that it speaks of, long enough and with the metrics collected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from identcli.theory.claim import Claim, Outcome, Relation
from identcli.theory.recorded import Missing, Run


@dataclass(frozen=True)
class Reading:
    """What a run says about a statement. note: numbers worth knowing beside the judged one."""

    predicted: float
    measured: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RunClaim(Claim):
    """A statement about a run.

    of, about: which runs it speaks of, as a test and in words. early: what a run that is too short can still decide:
    `breaks`, that the statement fails; `reaches`, that it holds; `both`.
    """

    about: str
    of: Callable[[Run], bool]
    early: Literal["breaks", "reaches", "both"]
    test: Callable[[Run], Reading]

    def judge(self, run: Run) -> Outcome:
        """The verdict of one run."""
        if not self.of(run):
            return self.undecided(f"it takes {self.about}")
        try:
            reading, long_enough = self.test(run), run.long_enough
        except Missing as missing:
            return self.undecided(str(missing))
        if not np.isfinite(reading.measured):
            return self.undecided("the metrics hold no defined value")
        holds = self.satisfied(reading.predicted, reading.measured)
        if not long_enough and self.early != "both" and holds != (self.early == "reaches"):
            return Outcome(
                self, reading.predicted, reading.measured, None, note=f"the run is too short: {run.updates} updates"
            )
        return Outcome(self, reading.predicted, reading.measured, holds, note=reading.note)

    def undecided(self, why: str) -> Outcome:
        return Outcome(self, None, None, None, note=why)


def run_claim(
    section: str,
    statement: str,
    *,
    about: str,
    of: Callable[[Run], bool],
    tolerance: float,
    reason: str,
    relation: Relation = "=",
    early: Literal["breaks", "reaches", "both"] = "breaks",
) -> Callable[[Callable[[Run], Reading]], RunClaim]:
    """Make a statement about runs of the function below; its id is the function's name with hyphens."""

    def made(test: Callable[[Run], Reading]) -> RunClaim:
        return RunClaim(
            id=test.__name__.replace("_", "-"),
            section=section,
            statement=statement,
            tolerance=tolerance,
            reason=reason,
            relation=relation,
            about=about,
            of=of,
            early=early,
            test=test,
        )

    return made


def _exact(run: Run) -> bool:
    return run.config["dtype"] == "float32" and not run.config["tf32"]


def _relative(values: np.ndarray) -> np.ndarray:
    """Each head's values (S, heads) over its first."""
    return np.asarray(values / values[0])


@run_claim(
    "5.3",
    "SGD keeps β in every head (largest relative change)",
    about="a run of SGD without decay, momentum and rebalancing",
    of=lambda run: run.case == "sgd",
    tolerance=0.02,
    reason="steps of finite size and the query biases, which β leaves out, move it by parts of a per cent",
)
def sgd_keeps_beta(run: Run) -> Reading:
    change = np.abs(_relative(run.heads["beta"]) - 1)
    return Reading(0, float(np.nanmax(change)), f"median head at the end {float(np.nanmedian(change[-1])):.1e}")


@run_claim(
    "5.3",
    "SGD with decay λ shrinks β by exp(−2 λ Σ lr) in every head (measured over predicted, the head furthest off)",
    about="a run of SGD with decay, without momentum and rebalancing",
    of=lambda run: run.case == "sgd_decay",
    tolerance=0.02,
    reason="as without decay: steps of finite size and the query biases",
)
def sgd_decay_shrinks_beta(run: Run) -> Reading:
    steps, ratio = run.heads["step"], _relative(run.heads["beta"])
    lr = np.zeros(int(steps[-1]) + 1)
    inside = run.train["step"] <= steps[-1]
    lr[run.train["step"][inside]] = run.train["lr"][inside]
    # β of row k is taken after update k, so the first row has seen its own update already.
    since_first = np.cumsum(lr)[steps] - np.cumsum(lr)[steps[0]]
    law = np.exp(-2 * float(run.config["optimizer"]["weight_decay"]) * since_first)
    off = ratio / law[:, None]
    worst = float(off.flat[np.nanargmax(np.abs(off - 1))])
    return Reading(1, worst, f"law {law[-1]:.4f}, median head {float(np.nanmedian(ratio[-1])):.4f}")


# Change of β in the median head from which on an optimizer has clearly left what gradient flow conserves.
CLEARLY = 0.2


def _change_of_beta(run: Run) -> float:
    """Relative change of β at the end, median head."""
    return float(np.nanmedian(np.abs(_relative(run.heads["beta"])[-1] - 1)))


@run_claim(
    "5.3",
    "AdamW doesn't keep β: in the median head it changes by more than the 2 % that SGD is granted",
    about="a run of AdamW whose weights aren't rebalanced",
    of=lambda run: run.free_adamw,
    relation="≥",
    tolerance=0,
    reason="what would count as kept for SGD",
    early="reaches",
)
def adamw_changes_beta(run: Run) -> Reading:
    change = _change_of_beta(run)
    return Reading(0.02, change, f"{'more' if change > CLEARLY else 'less'} than {CLEARLY:.0%}")


@run_claim(
    "5.3",
    "Each SGD step moves C of the bias-augmented pair by what its gradients predict, lr²(g_A g_Aᵀ − g_B g_Bᵀ), "
    "where that "
    "is 30 rounding floors or more (measured over predicted, the row furthest off)",
    about="a run of SGD without momentum and rebalancing",
    of=lambda run: run.plain_sgd,
    tolerance=0.15,
    reason="rounding of the weights before and after, three floors in all, over 30; and float32 gradients",
    early="both",
)
def drift_as_predicted(run: Run) -> Reading:
    heads = run.heads
    above = heads["drift_predicted"] >= 30 * heads["drift_floor"]
    if not above.any():
        raise Missing("no drift is 30 rounding floors or more")
    ratio = (heads["drift_bias"] / heads["drift_predicted"])[above]
    worst = float(ratio[np.nanargmax(np.abs(ratio - 1))])
    return Reading(1, worst, f"{int(above.sum())} rows, median {float(np.nanmedian(ratio)):.4f}")


@run_claim(
    "5.3",
    "SGD's updates have no part in the unidentified space: ρ with the biases is within 1.5 × what rounding alone "
    "gives, in "
    "the median (over the floor)",
    about="a run of SGD without decay, momentum and rebalancing",
    of=lambda run: run.case == "sgd",
    relation="≤",
    tolerance=0,
    reason="rounding scatters and larger weights round more; an update with a real part in it is orders above",
    early="both",
)
def sgd_share_is_rounding(run: Run) -> Reading:
    floor = run.heads["rho_floor"]
    with_biases, alone = run.heads["rho_bias"] / floor, run.heads["rho"] / floor
    return Reading(
        1.5,
        float(np.nanmedian(with_biases)),
        f"the paper's ρ, which leaves the query bias out, is up to {float(np.nanmax(alone)):.0e} floors",
    )


@run_claim(
    "5.3",
    "SGD's ρ lies far below that of a random direction, 1/(2H) (median over it)",
    about="a run of SGD without decay, momentum and rebalancing",
    of=lambda run: run.case == "sgd",
    relation="≤",
    tolerance=0,
    reason="a hundredth is far below; a gradient's own share is rounding and what the query bias takes",
    early="both",
)
def sgd_share_below_isotropic(run: Run) -> Reading:
    share = run.heads["rho"] / run.isotropic_share
    return Reading(0.01, float(np.nanmedian(share)), f"largest {float(np.nanmax(share)):.1e}")


@run_claim(
    "5.3",
    "AdamW's ρ comes near that of a random direction, 1/(2H) (median over it)",
    about="a run of AdamW",
    of=lambda run: run.config["optimizer"]["name"] == "adamw",
    relation="≥",
    tolerance=0,
    reason="within a factor of 30, where SGD is thousands of times below",
    early="both",
)
def adamw_share_near_isotropic(run: Run) -> Reading:
    share = run.heads["rho"] / run.isotropic_share
    return Reading(1 / 30, float(np.nanmedian(share)), f"from {np.nanmin(share):.1e} to {np.nanmax(share):.2g}")


@run_claim(
    "5.3",
    "Under AdamW τ spreads over the heads: its range grows by half at the least (largest over first)",
    about="a run of AdamW whose weights aren't rebalanced",
    of=lambda run: run.free_adamw,
    relation="≥",
    tolerance=0,
    reason="thirty times what SGD's may grow",
    early="reaches",
)
def adamw_spreads_tau(run: Run) -> Reading:
    if _change_of_beta(run) < CLEARLY:
        raise Missing(f"attention has hardly trained: β changed by {_change_of_beta(run):.1%} in the median head")
    spread = np.ptp(run.heads["tau"], axis=1)
    return Reading(1.5, float((spread / spread[0]).max()), f"at the end {float(spread[-1] / spread[0]):.2f}")


@run_claim(
    "5.3",
    "Under SGD τ doesn't spread: its range over the heads stays (largest over first)",
    about="a run of SGD without momentum and rebalancing",
    of=lambda run: run.plain_sgd,
    relation="≤",
    tolerance=0,
    reason="as β in every head; the range is that of two heads",
)
def sgd_keeps_tau(run: Run) -> Reading:
    spread = np.ptp(run.heads["tau"], axis=1)
    return Reading(1.05, float((spread / spread[0]).max()))


@run_claim(
    "5.3",
    "No head loses rank: μ stays away from 0 (least over first)",
    about="any run",
    of=lambda run: True,
    relation="≥",
    tolerance=0,
    reason="a lost rank would take μ to its rounding, 1e-7 or less of it",
)
def no_rank_loss(run: Run) -> Reading:
    mu = _relative(run.heads["mu"])
    least = np.fmin(run.heads["eig_min_a"], run.heads["eig_min_b"])
    return Reading(1e-4, float(np.nanmin(mu)), f"smallest eigenvalue of one side alone {float(np.nanmin(least)):.1e}")


@run_claim(
    "4.7.1",
    "The key bias has numerically zero gradients: largest entries at least 10⁴ times smaller than the query "
    "bias's, at every "
    "step (query over key, the least)",
    about="a run with biases, in float32 without TF32",
    of=lambda run: bool(run.config["model"]["bias"]) and _exact(run),
    relation="≥",
    tolerance=0,
    reason="float32 leaves 1e-7 of the terms that cancel, a few hundred of them",
    early="both",
)
def key_bias_gradients_vanish(run: Run) -> Reading:
    query, key = run.biases["query_max"], run.biases["key_max"]
    known = (query > 0) & np.isfinite(query) & np.isfinite(key)
    if not known.any():
        raise Missing("no step has a gradient of the query bias")
    ratio = query[known] / np.maximum(key[known], np.finfo(np.float32).tiny)
    return Reading(1e4, float(ratio.min()), f"median {float(np.median(ratio)):.0e}")


def _beta_of_event(run: Run, when: str) -> np.ndarray:
    """β of each event and head (events, heads): of the weights, or with the biases when these were balanced too."""
    kind = "beta_bias" if run.config["rebalance"]["target"] == "augmented" else "beta"
    return np.array([np.ravel(event[f"{kind}_{when}"]) for event in run.rebalancings], dtype=float)


@run_claim(
    "5.2.2",
    "Each rebalancing makes β zero (largest, after over before)",
    about="a rebalanced run",
    of=lambda run: run.config["rebalance"]["mode"] == "on",
    tolerance=1e-4,
    reason="the weights are rounded to float32 on the way back: 1e-7 of ‖W‖², over an imbalance of 1e-2 of it",
    early="both",
)
def rebalancing_makes_beta_zero(run: Run) -> Reading:
    ratio = _beta_of_event(run, "after") / _beta_of_event(run, "before")
    return Reading(0, float(np.nanmax(ratio)), f"{len(ratio)} rebalancings")


@run_claim(
    "5.3",
    "After a rebalancing β grows again: a sawtooth (at the last row before the next one over right after, median)",
    about="a rebalanced run of AdamW, measured between rebalancings",
    of=lambda run: run.case == "adamw_rebalanced",
    relation="≥",
    tolerance=0,
    reason="right after it is rounding, 1e-7; a single update already is a thousand times that",
    early="both",
)
def beta_grows_after_rebalancing(run: Run) -> Reading:
    column = "beta_bias" if run.config["rebalance"]["target"] == "augmented" else "beta"
    steps, beta = run.heads["step"], run.heads[column]
    after = _beta_of_event(run, "after")
    starts = [int(event["step"]) for event in run.rebalancings]
    ratios = []
    for index, (start, end) in enumerate(zip(starts, [*starts[1:], np.inf], strict=True)):
        inside = np.flatnonzero((steps >= start) & (steps < end))
        if len(inside):
            ratios.append(beta[inside[-1]] / np.maximum(after[index], np.finfo(np.float32).tiny))
    if not ratios:
        raise Missing("nothing was measured after a rebalancing")
    return Reading(10, float(np.nanmedian(ratios)))


@run_claim(
    "5.2.2",
    "Rebalancing leaves the model's output (largest change over the largest output)",
    about="a rebalanced run in float32 without TF32",
    of=lambda run: run.config["rebalance"]["mode"] == "on" and _exact(run),
    tolerance=1e-4,
    reason="float32 weights and layers: 1e-7 × some hundred terms a layer",
    early="both",
)
def rebalancing_keeps_the_output(run: Run) -> Reading:
    change = [event["output_change"] / event["output_scale"] for event in run.rebalancings if "output_scale" in event]
    if not change:
        raise Missing("the events hold no change of the output")
    return Reading(0, float(np.max(change)))


@run_claim(
    "5.3",
    "Clearing the optimizer's state alone leaves the weights: β of each event is the same before and after",
    about="a run with rebalance=state_only",
    of=lambda run: run.config["rebalance"]["mode"] == "state_only",
    tolerance=0,
    reason="the weights keep their bits",
    early="both",
)
def state_only_leaves_weights(run: Run) -> Reading:
    apart = _beta_of_event(run, "after") - _beta_of_event(run, "before")
    return Reading(0, float(np.abs(apart).max()))


def run_claims() -> tuple[RunClaim, ...]:
    """All statements about one run."""
    return tuple(value for value in globals().values() if isinstance(value, RunClaim))


def verify_run(run: Run, claims: tuple[RunClaim, ...] | None = None) -> list[Outcome]:
    """Judge every statement by one run."""
    return [claim.judge(run) for claim in (run_claims() if claims is None else claims)]
