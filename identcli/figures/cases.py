"""Runs sorted into cases: those that differ only by seed or learning rate belong together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from identcli.figures.data import Run
from identcli.figures.naming import titles

ORDER = ("sgd", "sgd_decay", "adamw", "adamw_rebalanced", "adamw_state_only")


@dataclass(frozen=True)
class Case:
    """One case: the run to be drawn, the same with other seeds, those of other learning rates, and points that never
    started though their sweep lists them (`run` is one of these when none did).
    """

    run: Run
    title: str
    seeds: list[Run] = field(default_factory=list)
    other_lrs: list[Run] = field(default_factory=list)
    missing: list[Run] = field(default_factory=list)

    @property
    def everything(self) -> list[Run]:
        """All its runs, the drawn one first."""
        return [self.run, *self.seeds, *self.other_lrs, *self.missing]


def cases(runs: Sequence[Run]) -> list[Case]:
    """The cases among the runs, the paper's first and in its order.

    Of a case's learning rates the first is drawn, and of that the first seed.
    """
    groups = sorted(settings(runs), key=_place)
    found = []
    for group, title in zip(groups, titles([group[0] for group in groups]), strict=True):
        first, *rest = group
        started = [run for run in rest if run.config]
        found.append(
            Case(
                first,
                title,
                seeds=[run for run in started if run.config["lr"] == first.config["lr"]],
                other_lrs=[run for run in started if run.config["lr"] != first.config["lr"]],
                missing=[run for run in rest if not run.config],
            )
        )
    return found


def settings(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups of equal settings but for seed and learning rate; in each those that started come first.

    A point that never started has no settings yet; its overrides say to which of its sweep's groups it belongs.
    """
    plans = {run.plan: run.identity("seed", "lr") for run in runs if run.config}
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: not run.config):
        key = run.identity("seed", "lr") if run.config else plans.get(run.plan, " ".join(run.plan))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _place(group: Sequence[Run]) -> int:
    case = group[0].case
    return ORDER.index(case) if case in ORDER else len(ORDER) + (case is None)
