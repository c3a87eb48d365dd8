"""What every policy must heed: a path needs workers that can serve it, and D-local needs a cache."""

from ppd.core.decision import Decision, Turn, View
from ppd.core.learning import survival
from ppd.core.names import Reason, Route
from ppd.core.table import Table

_NO_DECODE = Decision(Route.REPLICA, Reason.NO_DECODE)
_NO_PREFILL = Decision(Route.D_LOCAL, Reason.NO_PREFILL)
_FIRST_TURN = Decision(Route.P_D, Reason.FIRST_TURN)
_NOT_CACHED = Decision(Route.P_D, Reason.NOT_CACHED)


def serveable(view: View) -> tuple[Route, ...]:
    """The paths that this view's workers can serve; empty means that no decision can help (answer 503)."""
    paths: list[Route] = []
    if view.prefill and view.decode:
        paths.append(Route.P_D)
        if view.pullback:
            paths.append(Route.P_D_PULLBACK)
    if view.decode:
        paths.append(Route.D_LOCAL)
    if view.replica:
        paths.append(Route.REPLICA)
    return tuple(paths)


def forced(view: View) -> Decision | None:
    """The only path that is left when a pool is empty, or None if P->D and D-local are both possible."""
    if view.decode is None:
        return _NO_DECODE
    if view.prefill is None:
        return _NO_PREFILL
    return None


def first_or_uncached(turn: Turn) -> Decision | None:
    """P->D for a first turn and for a conversation that D is not expected to hold any more."""
    if turn.turn <= 1:
        return _FIRST_TURN
    return None if turn.d_cached > 0 else _NOT_CACHED


def likely_evicted(turn: Turn, view: View, table: Table) -> Decision | None:
    """P->D for a conversation that D has probably evicted: by how long it was idle, and how full D is."""
    kv_use = view.decode.kv_use if view.decode else 0.0
    chance = survival.probability(table.survival, turn.idle_s, kv_use)
    return None if chance >= survival.TREAT_AS_CACHED else _NOT_CACHED
