"""`ppd table explain`: what would happen to a turn, and why."""

import asyncio
from typing import Any

import msgspec
from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from ppd.cli.stack.probes import http_get
from ppd.cli.table.ask import ask, says_errors
from ppd.cli.table.where import TableSettings, local_frontend, read
from ppd.core.decision import WorkerView
from ppd.core.score import DEFAULT_SLO

_ASSUMED = {
    "turns": ", as the newest turn was routed",
    "default": ", the default: no frontend was asked, and no turn has come yet",
}
_WHY = {
    "policy": "a policy without a table decided",
    "first-turn": "it is the conversation's first turn",
    "not-cached": "D is not expected to hold the conversation any more",
    "table": "its own cell was measured",
    "table-nearest": "its cell was not measured, or is tied: the nearest measured one decides",
    "table-live": "the table's figures, corrected by the queues that were given",
    "live-stale": "the table alone: no load report of P and D was given",
}


class ExplainSettings(TableSettings):
    """What would happen to a given turn. With the load of P or D, as the frontend would see it, the live
    correction is part of it; without, the table alone decides."""

    policy: str = Field(
        "", description="the routing policy; empty: the frontend's, else that of the newest turn"
    )
    frontend: str = Field("", description="URL of the frontend; empty: the stack of this folder")
    slo: str = Field(DEFAULT_SLO, description="the SLO class of the request")
    turn: int = Field(2, ge=1, description="1 = the conversation's first")
    n_ctx: int = Field(1024, ge=0, description="tokens of the conversation before this turn")
    n_in: int = Field(128, ge=1, description="new tokens")
    n_out: int = Field(128, ge=1, description="tokens of the answer")
    qps: float = Field(1.0, ge=0, description="new conversations a second")
    d_cached: int | None = Field(None, ge=0, description="of the context, what D holds; default: all")
    p_cached: int = Field(0, ge=0, description="of the context, what P holds")
    idle_s: float = Field(0.0, ge=0, description="since the conversation's last turn")
    p_queued: int | None = Field(None, ge=0, description="prefill tokens that P has queued")
    d_queued: int | None = Field(None, ge=0, description="prefill tokens that D has queued")
    d_running: int | None = Field(None, ge=0, description="streams that D is decoding")
    d_kv_use: float | None = Field(None, ge=0, le=1, description="share of D's KV memory in use, 0..1")
    d_itl_ms: float | None = Field(None, ge=0, description="time between two tokens on D now, ms")
    json_: bool = Field(False, alias="json", description="as JSON")

    def request(self) -> dict[str, Any]:
        names = ("turn", "n_ctx", "n_in", "n_out", "qps", "d_cached", "p_cached", "idle_s")
        asked = self.which() | {name: getattr(self, name) for name in names} | {"slo_class": self.slo}
        if policy := self.policy or asyncio.run(_running_policy(self.frontend or local_frontend())):
            asked["policy"] = policy
        load = (self.p_queued, self.d_queued, self.d_running, self.d_kv_use, self.d_itl_ms)
        if any(value is not None for value in load):
            asked["prefill"] = _view("prefill", queued_prefill_tokens=self.p_queued)
            asked["decode"] = _view(
                "decode",
                queued_prefill_tokens=self.d_queued,
                running=self.d_running,
                kv_use=self.d_kv_use,
                itl_ms=self.d_itl_ms,
            )
        return asked


async def _running_policy(frontend: str) -> str:
    """By which the frontend routes; empty where none answers."""
    _, health = await http_get(f"{frontend.rstrip('/')}/health") if frontend else (0, None)
    return str(health.get("policy") or "") if isinstance(health, dict) else ""


def _view(worker_id: str, **load: float | None) -> dict[str, Any]:
    """A fresh load report."""
    given = {name: value for name, value in load.items() if value is not None}
    view: dict[str, Any] = msgspec.to_builtins(WorkerView(worker_id, age_s=0.0))
    return view | given


def _show(answer: dict[str, Any], console: Console) -> None:
    if policy := answer.get("policy"):  # an older planner names none
        console.print(f"policy {policy}{_ASSUMED.get(answer['policy_known_from'], '')}")
    console.print(f"[bold]{answer['path']}[/bold]: {_WHY.get(answer['reason'], answer['reason'])}")
    weights = answer["weights"]
    console.print(
        f"cell {answer['cell']}, figures of {answer['decided_by_cell']}; "
        f"table version {answer['table_version']} ({answer['table_source']})"
    )
    console.print(
        f"SLO class {answer['slo_class']}: TTFT × {weights['ttft']:g}, TPOT × {weights['tpot']:g}; "
        f"score {answer['score']:+.3f} (above 0: D-local)\n"
    )
    console.print(_paths(answer))
    learned = answer.get("learned") or {}
    for path, each in (learned.get("paths") or {}).items():
        if each["turns"]:
            console.print(
                f"learned since, {path}: TTFT {_ms(each['ttft_ms'])} ms, TPOT {_ms(each['tpot_ms'])} ms "
                f"({each['turns']:.0f} turns)"
            )
    if "survival" in learned:
        treated = "as cached" if learned["treated_as_cached"] else "as lost"
        console.print(f"D still holds it with probability {learned['survival']:.2f}: treated {treated}")


def _paths(answer: dict[str, Any]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("path", "TTFT, ms", "TPOT, ms", "measured TTFT", "TPOT", "turns", "source"):
        grid.add_column(column, no_wrap=True)
    for path, measured in answer["measured"].items():
        expected = answer["expected"].get(path, {})
        ttft, tpot = measured["ttft_ms"], measured["tpot_ms"]
        grid.add_row(
            path,
            _ms(expected.get("ttft_ms")),
            _ms(expected.get("tpot_ms")),
            f"{_ms(ttft['mean'])} ± {ttft['sd']:.2g}",
            f"{_ms(tpot['mean'])} ± {tpot['sd']:.2g}",
            f"{ttft['n']:g}",
            measured["provenance"],
        )
    return grid


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@says_errors("ppd table explain")
def main(argv: list[str]) -> int:
    settings = read(ExplainSettings, argv, "ppd table explain")
    answer = ask(settings, "explain", settings.request())
    if settings.json_:
        print(msgspec.json.format(msgspec.json.encode(answer), indent=1).decode())
    else:
        _show(answer, Console(soft_wrap=True, highlight=False))
    return 0
