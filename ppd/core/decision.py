"""What a decision takes and gives: the turn's features, the view of the cluster, the decision."""

from typing import Protocol

import msgspec

from ppd.core.names import Reason, Route
from ppd.core.score import DEFAULT_SLO, Expected, Weights
from ppd.core.table import Table

__all__ = ["DEFAULT_SLO", "Decision", "Expected", "Policy", "Turn", "View", "Weights", "WorkerView"]


class Turn(msgspec.Struct, frozen=True):
    """The features of one turn: the paper's psi = (t, n_in, n_out, n_ctx, q), and what the paper lacks."""

    turn: int  # 1 = the conversation's first
    n_in: int  # new prompt tokens
    n_out: int  # predicted output tokens
    n_ctx: int  # tokens of the conversation before this turn
    qps: float  # conversations a second, in a sliding window
    d_cached: int = 0  # of the prompt, tokens that the session's D is expected to hold; 0 = nothing
    p_cached: int = 0  # of the prompt, tokens that P is expected to hold
    local_streak: int = 0  # D-local turns in a row before this one
    idle_s: float = 0.0  # since the session's last turn
    draw: float = 1.0  # uniform in [0, 1) per request, for exploration; 1 = never explore on this turn

    @property
    def prompt(self) -> int:
        return self.n_ctx + self.n_in


class WorkerView(msgspec.Struct, frozen=True):
    """One worker as seen now: its last report, corrected by what was dispatched since."""

    worker_id: str
    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0
    queued_prefill_tokens: int = 0
    itl_ms: float = 0.0  # 0 = not known
    prefill_tokens_per_s: float = 0.0  # throughput over the last ten seconds; 0 = not known
    prefill_speed_tokens_per_s: float = 0.0  # while it prefills; 0 = not known
    max_batch_tokens: int = 0
    unsent_kv_tokens: int = 0  # of prompts that this P computes or computed: their KV is not on a D yet
    age_s: float = 1e9  # of the report; old = do not trust


class View(msgspec.Struct, frozen=True):
    """The candidates that placement would use: the least loaded P, and the session's D where healthy."""

    prefill: WorkerView | None = None
    decode: WorkerView | None = None
    replica: WorkerView | None = None  # the least loaded worker that does both
    n_out_mean: float = 0.0  # recent mean of this model's output tokens; 0 = not known
    kv_bytes_per_token: int = 0
    link_bytes_per_s: float = 0.0  # what a KV transfer from this P to this D reaches; 0 = not known
    handoff_ms: float = 0.0  # what a hand-off costs whatever its size
    pullback: bool = False  # unexpired parameters for a pull-back exist, and it is switched on

    def on_link_ms(self, tokens: int) -> float:
        """How long the KV of so many tokens takes on the link; 0 where its speed is not known."""
        if self.link_bytes_per_s < 1.0:  # no link's
            return 0.0
        return 1e3 * tokens * self.kv_bytes_per_token / self.link_bytes_per_s


class Decision(msgspec.Struct, frozen=True):
    """The path, why, and the expectation per path (for header, span, metric and `explain`)."""

    path: Route
    reason: Reason
    score: float = 0.0  # > 0 speaks for D-local
    cell: str = ""  # the turn's own cell
    source: str = ""  # the measured cell that decided; another one where its own is empty or tied
    table_version: int = 0
    expected: dict[Route, Expected] = {}


class Policy(Protocol):
    """A rule for turns >= 2 with a cached conversation. Pure: no clock, no I/O, no lock."""

    name: str

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision: ...
