"""The run of a profile: what to measure next, measured, written down, until the budget or the grid ends."""

import random
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch

import msgspec

from planner.profile import capacity, choose, load, preflight
from planner.profile.capacity import MeasuredShape, MeasurementPlan
from planner.profile.client import Frontend, MeasuredCluster
from planner.profile.figures import (
    BASE,
    TRIES,
    CellFigures,
    ceilings,
    complete,
    conversation_s,
    figures,
)
from planner.profile.journal import Journal
from planner.profile.records import Point, ProfileError
from planner.profile.words import Words
from ppd.core.cells import CELLS, Cell
from ppd.core.names import Route
from ppd.core.score import Weights

_DEAD = 3  # points in a row of which no turn came through
_VISITS = 8  # of one cell, at most
_BACKLOG = 1.3  # what a point takes beside its plan: the last conversations, and repeats


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `budget_s`: None = every cell once."""

    budget_s: float | None = None
    cells: tuple[str, ...] = ()  # patterns of context/ratio; none = all
    levels: tuple[float, ...] = ()  # none = all
    turns: int = 2
    least: int = 6  # conversations a point, at least


class Progress(msgspec.Struct, frozen=True):
    """For whoever watches: what is being done, and how much time is left, in seconds."""

    doing: str
    spent_s: float
    left_s: float | None  # None = not known yet
    point: Point | None = None  # that was just finished


class Run:
    """One call of `ppd profile`; `journal` may hold what earlier ones measured."""

    def __init__(
        self,
        frontend: Frontend,
        cluster: MeasuredCluster,
        journal: Journal,
        options: Options,
        classes: Iterable[Weights],
        watch: Callable[[Progress], None],
        rng: random.Random,
    ) -> None:
        self._frontend = frontend
        self._cluster = cluster
        self._journal = journal
        self._options = options
        self._classes = tuple(classes)
        self._watch = watch
        self._rng = rng
        self._words = Words(rng)
        self._began_s = time.monotonic()
        self._dead = 0
        self._whole_s: float | None = None  # that all cells still wanted would take
        self._visits: dict[Cell, int] = {}
        self.without_pullback = ""  # why pull-back is not measured
        self.grid = self._wanted()

    def _wanted(self) -> tuple[Cell, ...]:
        """Raises ProfileError."""
        options, length = self._options, self._cluster.max_model_len
        found = tuple(
            cell
            for cell in CELLS
            if preflight.fits(cell, options.turns, length)
            and (not options.levels or cell.qps in options.levels)
            and (
                not options.cells
                or any(fnmatch(f"{cell.context}/{cell.ratio}", pattern) for pattern in options.cells)
            )
        )
        if not found:
            raise ProfileError(
                f"no cell is left: of the wanted ones none fits into the model's {length} tokens of context"
            )
        return found

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self) -> None:
        """Returns when the budget or the grid is at its end. Raises ProfileError. May be cancelled: the
        journal has all that was measured."""
        self._say("warming up")
        await preflight.warm_up(self._frontend, self._words)
        self.without_pullback = await preflight.pulls_back(self._frontend, self._words)
        if self._journal.speeds is None:
            self._say("measuring how much the cluster serves")
            self._journal.add(await capacity.measure(self._frontend, self._words))
        while (plan := self._next()) is not None:
            await self._visit(plan)

    def _say(self, doing: str, point: Point | None = None) -> None:
        left_s = self._left_s
        self._watch(Progress(doing, self._spent_s, None if left_s is None else max(0.0, left_s), point))

    @property
    def _left_s(self) -> float | None:
        budget_s = self._options.budget_s
        return self._whole_s if budget_s is None else budget_s - self._spent_s

    @property
    def _paths(self) -> tuple[Route, ...]:
        return BASE if self.without_pullback else (*BASE, Route.P_D_PULLBACK)

    def _next(self) -> MeasurementPlan | None:
        found = figures(self._journal.points)
        plans = self._plans(found)
        costs_s = {cell: len(self._paths) * plan.seconds * _BACKLOG for cell, plan in plans.items()}
        doubt = choose.Doubt(plans, complete(found), self._classes)
        self._whole_s = sum(costs_s.values())
        cell = choose.best(doubt, costs_s, self._left_s or 0.0)
        if cell is None:
            return None
        self._say(str(cell))
        return plans[cell]

    def _plans(self, found: Mapping[Cell, CellFigures]) -> dict[Cell, MeasurementPlan]:
        """Every cell that may be visited (again) and that the cluster keeps up with."""
        speeds = self._journal.speeds
        if speeds is None:
            raise ProfileError("the cluster's speeds were not measured")
        points, turns = self._journal.points, self._options.turns
        taken_s, too_much = conversation_s(points), ceilings(points)
        window_s = capacity.window_s(self._options.budget_s)
        rates = {}
        for shape in {MeasuredShape(cell.context, cell.ratio) for cell in self.grid}:
            expected = capacity.conversations_per_s(speeds, shape, turns)
            rates[shape] = capacity.rates(min(expected, too_much.get(shape, expected)))
        plans = {}
        for cell in self.grid:
            rate = rates[MeasuredShape(cell.context, cell.ratio)].get(cell.qps)
            once = self._options.budget_s is None and cell in found and found[cell].complete
            if rate and not once and self._visits.get(cell, 0) < _VISITS:
                plans[cell] = capacity.plan(cell, rate, speeds, turns, self._options.least, window_s, taken_s)
        return plans

    async def _visit(self, plan: MeasurementPlan) -> None:
        """All paths of one cell, in a random order; a flagged point is repeated. Raises ProfileError."""
        self._visits[plan.cell] = self._visits.get(plan.cell, 0) + 1
        for path in self._rng.sample(self._paths, len(self._paths)):
            for _ in range(TRIES):
                point = await load.measure(
                    self._frontend, self._words, plan, path, self._options.turns, self._rng
                )
                self._journal.add(point)
                self._say(f"{plan.cell} {path}", point)
                self._dead = 0 if any(sample.ok for sample in point.samples) else self._dead + 1
                if self._dead >= _DEAD:
                    raise ProfileError(f"nothing comes through any more: {point.samples[-1].error}")
                if point.flag is None:
                    break
