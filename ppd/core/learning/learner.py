"""One table's online loop: turns and load reports in, a better table out when there is reason for one."""

import msgspec

from ppd.core.cells import Cell
from ppd.core.learning.drift import Drift
from ppd.core.learning.estimate import Decayed
from ppd.core.learning.interference import Interference, charge_ms
from ppd.core.learning.link import LinkFit
from ppd.core.learning.prefill import PrefillCost
from ppd.core.learning.ratios import CELL_N, HALF_LIFE_S, PATH_N, Ratios
from ppd.core.learning.samples import MAX_TOKENS, Sample, Unfit, sample_of, survived
from ppd.core.learning.survival import Survival
from ppd.core.names import Route
from ppd.core.records import TurnRecord, WorkerLoad
from ppd.core.score import Expected
from ppd.core.table import Table

MAX_WORKERS = 64
DRIFT_TURNS = 1000  # number of turns after an alarm for which exploration is widened
_LEAST_LATER = 0.1  # share of turns: where nobody stays, no prefill is local either
_LEAST_LEFT = 0.2  # of a TPOT, by the correction for its batch
_COST_RANGE = 1e4  # a turn this many times off the prior is no measurement


class Learned(msgspec.Struct):
    """All that a learner knows; plain data, to be saved and loaded."""

    prior_version: int = 0  # of the table whose figures the ratios are relative to
    samples: int = 0
    unfit: dict[str, int] = {}
    explored: int = 0
    ratios: Ratios = msgspec.field(default_factory=Ratios)
    survival: Survival = msgspec.field(default_factory=Survival)
    prefill: PrefillCost = msgspec.field(default_factory=PrefillCost)
    interference: dict[str, Interference] = {}
    link: LinkFit = msgspec.field(default_factory=LinkFit)
    batch: dict[str, Decayed] = {}  # streams that a cell's turns met on their D
    opening: Decayed = msgspec.field(default_factory=Decayed)  # tokens that a turn decoded as a first one
    later: Decayed = msgspec.field(default_factory=Decayed)  # whether it was a later one, 0 or 1
    drift: dict[str, Drift] = {}  # "{path} ttft", "{path} tpot"
    drifting_until: int = 0  # a count of samples
    at_s: float = 0.0  # Unix time of the newest turn

    @property
    def drifting(self) -> bool:
        return self.samples < self.drifting_until


class Learner:
    """Pure: time comes in with each record, so that a replay gives the same result."""

    def __init__(self, prior: Table, learned: Learned | None = None) -> None:
        """What was learned against another prior than this is dropped, but for what holds for any."""
        self.prior = prior
        self.learned = learned or Learned(prior_version=prior.version)
        if self.learned.prior_version != prior.version:
            old = self.learned
            self.learned = Learned(
                prior_version=prior.version,
                survival=old.survival,
                prefill=old.prefill,
                interference=old.interference,
                link=old.link,
                at_s=old.at_s,
            )

    def observe(self, record: TurnRecord, now_s: float) -> Sample | Unfit:
        """Take in one finished turn, at `now_s` of a clock that all records share (Unix time).

        One that failed, was cancelled or refused teaches nothing.
        """
        sample = sample_of(record)
        if sample is Unfit.FAILED:
            return self._unfit(sample)
        kept = survived(record)
        if kept is not None:
            self.learned.survival.observe(record.idle_s, record.decode_kv_use, kept, now_s)
        self._count_tokens(record, now_s)
        if record.path is Route.P_D:
            self.learned.link.observe(record.kv_bytes, record.kv_transfer_ms / 1e3)
        if isinstance(sample, Unfit):
            return self._unfit(sample)
        self.learned.samples += 1
        self.learned.explored += record.explored
        self.learned.at_s = max(self.learned.at_s, now_s)
        self._learn(sample)
        return sample

    def _unfit(self, why: Unfit) -> Unfit:
        self.learned.unfit[why] = self.learned.unfit.get(why, 0) + 1
        return why

    def _count_tokens(self, record: TurnRecord, now_s: float) -> None:
        n_out = record.n_out_tokens or 0
        if 0 < n_out <= MAX_TOKENS:
            first = record.turn <= 1
            self.learned.opening.observe(first * n_out, now_s, HALF_LIFE_S, PATH_N)
            self.learned.later.observe(float(not first), now_s, HALF_LIFE_S, PATH_N)

    def _learn(self, sample: Sample) -> None:
        learned, path, name = self.learned, sample.path, str(sample.cell)
        prior = self.prior_cost(sample.cell, path)
        ttft_ms, tpot_ms = sample.ttft_ms, sample.tpot_ms
        if sample.p_computed and path is Route.P_D:
            usual = self.prior.lookup(sample.cell.slot).baseline.p_tokens
            ttft_ms = learned.prefill.normalized(ttft_ms, sample.p_computed, usual)
            learned.prefill.observe(sample.p_computed, sample.ttft_ms)
        if tpot_ms:
            tpot_ms = self._tpot_at_usual_load(name, sample)
        ttft = ttft_ms / prior.ttft_ms
        tpot = tpot_ms / prior.tpot_ms if tpot_ms else None
        if not _plausible(ttft) or not (tpot is None or _plausible(tpot)):
            return
        self._watch_drift(sample, ttft, tpot)
        learned.ratios.observe(name, path, ttft, tpot, learned.at_s)

    def _tpot_at_usual_load(self, cell: str, sample: Sample) -> float:
        """TPOT as it would have been in a batch of the cell's usual size, with what the turn cost that batch.

        Where the router heeds the load, D-local turns fall on moments with few streams and P->D turns on
        those with many. Taken as they are, the figures would tell of the moments, not of the paths.
        """
        usual = self.learned.batch.setdefault(cell, Decayed())
        usual.observe(sample.batch, self.learned.at_s, HALF_LIFE_S, CELL_N)
        d = self.learned.interference.get(sample.decode_worker)
        if d is None:
            return sample.tpot_ms
        at_usual = sample.tpot_ms - d.batch_ms * (sample.batch - usual.mean)
        decoded = sample.n_out + self.learned.opening.mean / max(self.learned.later.mean, _LEAST_LATER)
        charge = charge_ms(d.pause_ms, sample.d_computed, usual.mean, decoded)
        return max(_LEAST_LEFT * sample.tpot_ms, at_usual) + charge

    def _watch_drift(self, sample: Sample, ttft: float, tpot: float | None) -> None:
        learned, path, now_s = self.learned, sample.path, self.learned.at_s
        name = str(sample.cell)
        alarm = self._drift(path, "ttft").observe(ttft, learned.ratios.ttft(name, path, now_s).ratio, now_s)
        if tpot is not None:
            expected = learned.ratios.tpot(name, path, now_s).ratio
            alarm |= self._drift(path, "tpot").observe(tpot, expected, now_s)
        if alarm:
            learned.ratios.forget(path)
            learned.drifting_until = learned.samples + DRIFT_TURNS

    def _drift(self, path: Route, quantity: str) -> Drift:
        return self.learned.drift.setdefault(f"{path} {quantity}", Drift())

    def observe_load(self, load: WorkerLoad, now_s: float) -> None:
        """Take in a decode worker's report; the longest silent worker gives way to a new one."""
        workers = self.learned.interference
        if load.worker_id not in workers and len(workers) >= MAX_WORKERS:
            del workers[min(workers, key=lambda each: workers[each].at_s)]
        workers.setdefault(load.worker_id, Interference()).observe(load, now_s)

    def prior_cost(self, cell: Cell, path: Route) -> Expected:
        """What the prior says; pull-back, where it was not measured, starts as P->D."""
        row = self.prior.lookup(cell.slot)
        return row.expected.get(path) or row.p_d


def _plausible(ratio: float) -> bool:
    return 1 / _COST_RANGE < ratio < _COST_RANGE
