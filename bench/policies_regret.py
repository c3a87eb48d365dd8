"""What a policy loses to the best one of each condition, and whether ours keeps its promises."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import msgspec

from bench.policies_run import OURS, SETTLED_TURNS, Outcome

WORST_REGRET = 0.03
SETTLED_REGRET = 0.05
EXPLORED = 0.02
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t by degrees of freedom, from 1
_LATE_TURNS = 100  # fewer are no measure of a settled state


@dataclass(frozen=True, slots=True)
class Regret:
    """Of one policy: by condition and over all, means over seeds and halves of 95 % confidence intervals."""

    policy: str
    by_condition: dict[str, tuple[float, float]]
    mean: float
    mean_spread: float
    worst_single: float  # of one condition with one seed

    @property
    def worst(self) -> float:
        return max(r for r, _ in self.by_condition.values())

    @property
    def worst_condition(self) -> str:
        return max(self.by_condition, key=lambda name: self.by_condition[name][0])


class Claim(msgspec.Struct, frozen=True):
    """One promise and what was found; `met` is None where the runs cannot tell."""

    what: str
    target: float
    found: float
    where: str
    met: bool | None


def regrets(outcomes: Sequence[Outcome], late: bool = False) -> list[Regret]:
    """Goodput lost against the best policy of each condition and seed, the lowest worst case first.

    Replicas are another cluster, which no policy can choose: they stand beside, and may be below 0.
    """
    value = {(o.condition, o.seed, o.policy): o.goodput_late if late else o.goodput for o in outcomes}
    best: dict[tuple[str, int], float] = {}
    for (condition, seed, policy), goodput in value.items():
        if policy != "replica":
            best[condition, seed] = max(best.get((condition, seed), 0.0), goodput)
    lost: dict[str, dict[tuple[str, int], float]] = {}
    for (condition, seed, policy), goodput in value.items():
        top = best.get((condition, seed), 0.0)
        lost.setdefault(policy, {})[condition, seed] = 1 - goodput / top if top else 0.0
    return sorted((_regret(policy, of) for policy, of in lost.items()), key=lambda r: r.worst)


def _regret(policy: str, lost: dict[tuple[str, int], float]) -> Regret:
    by_condition: dict[str, list[float]] = {}
    by_seed: dict[int, list[float]] = {}
    for (condition, seed), each in lost.items():
        by_condition.setdefault(condition, []).append(each)
        by_seed.setdefault(seed, []).append(each)
    mean, spread = _interval([fmean(of) for of in by_seed.values()])
    found = {condition: _interval(of) for condition, of in by_condition.items()}
    return Regret(policy, found, mean, spread, max(lost.values()))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of a 95 % confidence interval by Student's t; 0 with a single value."""
    if len(values) < 2:
        return fmean(values), 0.0
    free = len(values) - 1
    t = _T95[free - 1] if free <= len(_T95) else 1.96
    return fmean(values), t * stdev(values) / sqrt(len(values))


def claims(outcomes: Sequence[Outcome]) -> list[Claim]:
    """Ours against its targets; nothing where it did not run."""
    ours = [o for o in outcomes if o.policy == OURS]
    if not ours:
        return []
    found = regrets(outcomes)
    mine = next(r for r in found if r.policy == OURS)
    others = [r for r in found if r.policy not in (OURS, "replica")]
    rival = min(others, key=lambda r: r.worst, default=None)
    most = max(ours, key=lambda o: o.explored)
    where = mine.worst_condition
    judged = [Claim("worst goodput regret", WORST_REGRET, mine.worst, where, mine.worst <= WORST_REGRET)]
    if rival is not None:
        lowest = mine.worst < rival.worst
        judged.append(Claim("lowest worst regret", rival.worst, mine.worst, f"next: {rival.policy}", lowest))
    explored = most.explored
    judged.append(Claim("share explored", EXPLORED, explored, most.condition, explored <= EXPLORED))
    return judged + _after_drift(outcomes)


def _after_drift(outcomes: Sequence[Outcome]) -> list[Claim]:
    """The regret against the new best policy, from a number of turns after a drift on."""
    what = f"regret from turn {SETTLED_TURNS} after"
    drifts = [o for o in outcomes if o.drifts]
    judged = []
    for condition in dict.fromkeys(o.condition for o in drifts):
        part = [o for o in drifts if o.condition == condition]
        mine = next((r for r in regrets(part, late=True) if r.policy == OURS), None)
        if mine is None:
            continue
        enough = all(o.turns_late >= _LATE_TURNS for o in part if o.policy == OURS)
        kept = mine.worst <= SETTLED_REGRET if enough else None
        judged.append(Claim(what, SETTLED_REGRET, mine.worst, condition, kept))
    return judged
