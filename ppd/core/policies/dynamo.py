"""NVIDIA Dynamo's conditional disaggregation: when to bypass the prefill worker.

`isl_bounding` needs D to lack few tokens, and a small part of the prompt; the ratio keeps first turns with P.
`prefill_load` bypasses a busy P; `isl_or_load` does for either cause. Names and defaults are Dynamo's, where
the busy threshold is unset: 1 here, which is one full step of queued prefill.
"""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import costs, guards
from ppd.core.table import Table

_MAX_BATCH_TOKENS = 8192  # vLLM's default for servers, where the worker has not told its own


class IslBounding:
    name = "isl_bounding"

    def __init__(self, eff_isl: int = 2048, eff_isl_ratio: float = 0.7) -> None:
        self._eff_isl = eff_isl
        self._ratio = eff_isl_ratio

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        return guards.forced(view) or _decision(self.bypasses(turn))

    def bypasses(self, turn: Turn) -> bool:
        effective = costs.uncached(turn)
        return effective < self._eff_isl and effective < self._ratio * turn.prompt


class PrefillLoad:
    name = "prefill_load"

    def __init__(self, prefill_busy: float = 1.0) -> None:
        self._busy = prefill_busy

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        return guards.forced(view) or _decision(self.bypasses(view))

    def bypasses(self, view: View) -> bool:
        p = view.prefill
        if p is None:
            return True
        return p.queued_prefill_tokens > self._busy * (p.max_batch_tokens or _MAX_BATCH_TOKENS)


class IslOrLoad:
    name = "isl_or_load"

    def __init__(self, eff_isl: int = 2048, eff_isl_ratio: float = 0.7, prefill_busy: float = 1.0) -> None:
        self._isl = IslBounding(eff_isl, eff_isl_ratio)
        self._load = PrefillLoad(prefill_busy)

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        return guards.forced(view) or _decision(self._isl.bypasses(turn) or self._load.bypasses(view))


def _decision(bypass: bool) -> Decision:
    return Decision(Route.D_LOCAL if bypass else Route.P_D, Reason.POLICY)
