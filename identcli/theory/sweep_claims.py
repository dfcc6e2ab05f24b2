"""What the paper reports of several runs together: every statement about a run over all of them, and comparisons.

Comparisons are paired: runs that differ in nothing but what is compared, seed by seed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from identcli.theory.claim import Claim, Outcome, Relation
from identcli.theory.recorded import Missing, Run
from identcli.theory.run_claims import Reading, RunClaim, run_claims

# Student's t for 95 % of a symmetric interval, by degrees of freedom from 1 to 10.
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, kw_only=True)
class SweepClaim(Claim):
    """A statement about several runs; its test raises Missing when they can't decide it."""

    test: Callable[[Sequence[Run]], Reading]

    def judge(self, runs: Sequence[Run]) -> Outcome:
        """The verdict of the runs together."""
        try:
            reading = self.test(runs)
        except Missing as missing:
            return Outcome(self, None, None, None, note=str(missing))
        holds = self.satisfied(reading.predicted, reading.measured)
        return Outcome(self, reading.predicted, reading.measured, holds, note=reading.note)


def sweep_claim(
    section: str, statement: str, *, tolerance: float, reason: str, relation: Relation = "="
) -> Callable[[Callable[[Sequence[Run]], Reading]], SweepClaim]:
    """Make a statement about several runs of the function below."""

    def made(test: Callable[[Sequence[Run]], Reading]) -> SweepClaim:
        return SweepClaim(
            id=test.__name__.replace("_", "-"),
            section=section,
            statement=statement,
            tolerance=tolerance,
            reason=reason,
            relation=relation,
            test=test,
        )

    return made


def over_all(claim: RunClaim, runs: Sequence[Run]) -> Outcome:
    """A statement about a run, judged by every run of a sweep: the one that is furthest from holding speaks.

    It holds when some run decides it and none that does contradicts.
    """
    judged = [(claim.judge(run), run) for run in runs]
    decided = [(outcome, run) for outcome, run in judged if outcome.holds is not None]
    if not decided:
        # A run of the right case that is too short says more than one of another case.
        notes = [outcome.note for outcome, run in judged if claim.of(run)]
        return claim.undecided(notes[0] if notes else f"it takes {claim.about}")

    def short_of(outcome: Outcome) -> float:
        assert outcome.predicted is not None
        assert outcome.measured is not None
        beyond = outcome.measured - outcome.predicted
        return {"=": abs(beyond), "≤": beyond, "≥": -beyond}[claim.relation]

    worst, run = max(decided, key=lambda pair: (pair[0].holds is False, short_of(pair[0])))
    many = f"{len(decided)} runs; " if len(decided) > 1 else ""
    note = f"{many}{run.path.name}" + (f": {worst.note}" if worst.note else "")
    return Outcome(claim, worst.predicted, worst.measured, worst.holds, note=note)


def pairs(runs: Sequence[Run], case: str, reference: str) -> list[tuple[Run, Run]]:
    """Runs of one case, each with the run of the other that differs in rebalancing alone. Missing: fewer than 2."""
    of_reference = {run.setting("rebalance"): run for run in runs if run.case == reference}
    found = [
        (run, of_reference[run.setting("rebalance")])
        for run in runs
        if run.case == case and run.setting("rebalance") in of_reference
    ]
    by_rest: dict[str, list[tuple[Run, Run]]] = {}
    for one in found:
        by_rest.setdefault(one[0].setting("seed"), []).append(one)
    most = max(by_rest.values(), key=len, default=[])
    if len(most) < 2:
        raise Missing(f"it takes {case} and {reference} with at least two common seeds; there are {len(most)}")
    return most


def paired_loss(runs: Sequence[Run], case: str, reference: str) -> Reading:
    """Mean difference of the final losses, seed by seed, in standard deviations of the reference's over the seeds."""
    both = pairs(runs, case, reference)
    ours, theirs = (np.array([run.final_loss for run in side]) for side in zip(*both, strict=True))
    deviation = float(theirs.std(ddof=1))
    if not deviation:
        raise Missing("the seeds give the same loss: no deviation to compare with")
    mean = float((ours - theirs).mean())
    note = f"{mean:+.4f} nats over {len(both)} seeds; deviation of the seeds {deviation:.4f}"
    return Reading(0, mean / deviation, note)


@sweep_claim(
    "5.3",
    "Rebalancing leaves the loss: against clearing the state alone, paired by seed (in deviations of the seeds)",
    tolerance=1,
    reason="one standard deviation of the final validation loss over the seeds",
)
def rebalancing_against_state_only(runs: Sequence[Run]) -> Reading:
    return paired_loss(runs, "adamw_rebalanced", "adamw_state_only")


@sweep_claim(
    "5.3",
    "Rebalancing leaves the loss: against plain AdamW, paired by seed (in deviations of the seeds)",
    tolerance=1,
    reason="one standard deviation of the final validation loss over the seeds; dropping the state has a cost of "
    "its own",
)
def rebalancing_against_adamw(runs: Sequence[Run]) -> Reading:
    return paired_loss(runs, "adamw_rebalanced", "adamw")


@sweep_claim(
    "5.3",
    "Clearing the state alone behaves like plain AdamW in its loss, paired by seed (in deviations of the seeds)",
    tolerance=1,
    reason="one standard deviation of the final validation loss over the seeds",
)
def state_only_loss_like_adamw(runs: Sequence[Run]) -> Reading:
    return paired_loss(runs, "adamw_state_only", "adamw")


@sweep_claim(
    "5.3",
    "Clearing the state alone behaves like plain AdamW in β: final β over plain AdamW's, median head, mean of "
    "the seeds",
    tolerance=0.25,
    reason="a quarter: β itself changes by more than 20 %, and rebalancing would halve it at the least",
)
def state_only_beta_like_adamw(runs: Sequence[Run]) -> Reading:
    plain = {run.setting("rebalance"): run for run in runs if run.case == "adamw"}
    both = [
        (run, plain[run.setting("rebalance")])
        for run in runs
        if run.case == "adamw_state_only" and run.setting("rebalance") in plain
    ]
    if not both:
        raise Missing("it takes adamw_state_only and adamw with a common seed")
    ratios = []
    for ours, theirs in both:
        if not (ours.long_enough and theirs.long_enough):
            raise Missing(f"the runs are too short: {ours.updates} updates")
        ratios.append(float(np.nanmedian(ours.heads["beta"][-1] / theirs.heads["beta"][-1])))
    return Reading(1, float(np.mean(ratios)), f"{len(ratios)} seeds")


@sweep_claim(
    "5.3",
    "ρ rises from SGD to SGD with decay to AdamW (the smaller of the two ratios of their medians)",
    relation="≥",
    tolerance=0,
    reason="in order means ratios above 1",
)
def shares_in_order(runs: Sequence[Run]) -> Reading:
    medians = {}
    for case in ("sgd", "sgd_decay", "adamw"):
        found = [run for run in runs if run.case == case and run.long_enough]
        if not found:
            raise Missing("it takes runs of sgd, sgd_decay and adamw, long enough")
        medians[case] = float(np.median([np.nanmedian(run.heads["rho"]) for run in found]))
    ratio = min(medians["sgd_decay"] / medians["sgd"], medians["adamw"] / medians["sgd_decay"])
    return Reading(1, ratio, ", ".join(f"{case} {value:.1e}" for case, value in medians.items()))


@sweep_claim(
    "5.3",
    "SGD's drift grows with the learning rate (slope of log drift against log lr; reported, only its sign is judged)",
    relation="≥",
    tolerance=0,
    reason="the paper's “decreases with learning rate”: any slope above 0. A slope of 2 holds for one step from "
    "the same "
    "weights; at equal steps the runs are at different points",
)
def drift_grows_with_lr(runs: Sequence[Run]) -> Reading:
    by_rest: dict[str, list[Run]] = {}
    for run in runs:
        if run.case == "sgd":
            by_rest.setdefault(run.setting("lr", "seed"), []).append(run)
    most = max(by_rest.values(), key=lambda group: len({run.config["lr"] for run in group}), default=[])
    if len({run.config["lr"] for run in most}) < 3:
        raise Missing("it takes runs of SGD at three learning rates or more")
    if not all(run.long_enough for run in most):
        raise Missing(f"the runs are too short: {min(run.updates for run in most)} updates")
    x = np.log([float(run.config["lr"]) for run in most])
    y = np.log([_drift(run) for run in most])
    slope, half = line(x, y)
    note = f"slope {slope:.2f}, 95 % {slope - half:.2f} to {slope + half:.2f}, {len(most)} runs"
    return Reading(0, slope, note)


def _drift(run: Run) -> float:
    """Median drift over heads and over the rows after warm-up."""
    rows = run.heads["step"] >= run.config["schedule"]["warmup"]
    drift = float(np.nanmedian(run.heads["drift"][rows]))
    if not drift > 0:
        raise Missing(f"{run.path.name} has no drift")
    return drift


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of the least-squares line and the half width of its 95 % interval, for three points or more."""
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    residual = y - y.mean() - slope * (x - x.mean())
    freedom = len(x) - 2
    t = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else 1.96 + 2.4 / freedom
    return slope, t * math.sqrt(float((residual**2).sum()) / freedom / spread)


def sweep_claims() -> tuple[SweepClaim, ...]:
    """All statements that compare runs."""
    return tuple(value for value in globals().values() if isinstance(value, SweepClaim))


def verify_sweep(runs: Sequence[Run]) -> list[Outcome]:
    """Judge every statement by all runs together."""
    return [over_all(claim, runs) for claim in run_claims()] + [claim.judge(runs) for claim in sweep_claims()]
