"""Writes dashboards/*.json, from the tables of panels below: run it after a change."""

import json
from pathlib import Path
from typing import Any, NamedTuple

_COLUMNS = 24


class Panel(NamedTuple):
    """A time series, or a single number; each query is (PromQL, legend)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8
    height: int = 8


def rate(metric: str, by: str, window: str = "1m", where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{where}[{window}]))"


def share(part: str, whole: str) -> str:
    """Nothing, rather than a hole or NaN, where the whole is 0."""
    return f"sum(rate({part}[5m])) / (sum(rate({whole}[5m])) > 0)"


def quantile(q: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket[5m])))"


def mean(histogram: str, by: str) -> str:
    return f"sum by ({by}) (rate({histogram}_sum[1m])) / (sum by ({by}) (rate({histogram}_count[1m])) > 0)"


def stat(title: str, unit: str, query: str, about: str = "") -> Panel:
    return Panel(title, unit, ((query, ""),), about, kind="stat", width=4, height=4)


def by_path(title: str, histogram: str, about: str = "") -> Panel:
    queries = tuple((quantile(q, histogram, "path"), f"{{{{path}}}} p{q * 100:.0f}") for q in (0.5, 0.95))
    return Panel(title, "s", queries, about)


OVERVIEW = (
    stat("Turns", "reqps", "sum(rate(ppd_requests_total[1m]))"),
    stat("Share D-local", "percentunit", share('ppd_requests_total{path="d-local"}', "ppd_requests_total")),
    stat("TTFT, median", "s", quantile(0.5, "ppd_ttft_seconds")),
    stat("TPOT, median", "s", quantile(0.5, "ppd_tpot_seconds")),
    stat("Failed turns", "percentunit", share('ppd_requests_total{status=~"5.."}', "ppd_requests_total")),
    stat(
        "Ready workers",
        "none",
        "max(sum by (instance) (ppd_workers))",
        "As the frontend that sees most counts them.",
    ),
    Panel("Turns by path", "reqps", ((rate("ppd_requests_total", "path"), "{{path}}"),), stacked=True),
    Panel("Turns by reason", "reqps", ((rate("ppd_requests_total", "reason"), "{{reason}}"),), stacked=True),
    Panel(
        "Errors, by status",
        "reqps",
        ((rate("ppd_requests_total", "status", where='{status=~"[45].."}'), "{{status}}"),),
    ),
    by_path(
        "Time to first token, by path",
        "ppd_path_ttft_seconds",
        "Of streams, from the decision on: without the wait in the frontend's queue.",
    ),
    by_path("Time per output token", "ppd_tpot_seconds"),
    by_path("Whole turn", "ppd_e2e_seconds"),
    Panel(
        "KV moved and saved",
        "Bps",
        ((rate("ppd_kv_bytes_total", "kind"), "{{kind}}"),),
        "Moved: pulled over NIXL. Saved: what a D-local turn did not have to move.",
    ),
    Panel(
        "In progress and waiting",
        "none",
        (("sum(ppd_running)", "running"), ("sum(ppd_queued)", "waiting in the frontend")),
    ),
    Panel(
        "Wait in the frontend, hop through P",
        "s",
        (
            (quantile(0.95, "ppd_queue_seconds"), "queue p95"),
            (quantile(0.5, "ppd_prefill_hop_seconds"), "hop through P p50"),
            (quantile(0.95, "ppd_prefill_hop_seconds"), "hop through P p95"),
        ),
    ),
    Panel(
        "Retries, hang-ups, turned away",
        "reqps",
        (
            (rate("ppd_retries_total", "leg, kind"), "retry of {{leg}}: {{kind}}"),
            (rate("ppd_cancelled_total", "stage"), "client left: {{stage}}"),
            (rate("ppd_rejected_total", "why"), "turned away: {{why}}"),
        ),
    ),
    Panel(
        "Was it still cached on D?",
        "reqps",
        ((rate("ppd_session_cache_total", "result"), "{{result}}"),),
        "Turns expected to be cached, by what D really had.",
        stacked=True,
    ),
    Panel("Tokens", "none", ((rate("ppd_tokens_total", "kind"), "{{kind}} a second"),)),
    Panel(
        "The decision, and the frontend's loop",
        "s",
        ((quantile(0.99, "ppd_decision_seconds"), "decision p99"), ("max(ppd_loop_lag_seconds)", "loop lag")),
    ),
    Panel("Sessions remembered", "none", (("sum by (instance) (ppd_sessions)", "{{instance}}"),)),
    Panel("Workers", "none", (("max by (model, role) (ppd_workers)", "{{model}} {{role}}"),)),
)

PLANNER = (
    stat(
        "Leaders", "none", "sum(ppd_planner_leader)", "One leads; 0 or 2 for longer than a lease is a fault."
    ),
    stat("Turn records waiting", "none", "max(ppd_planner_turns_lag)"),
    stat("Verdicts changed, 1 h", "none", "sum(increase(ppd_planner_verdicts_changed_total[1h]))"),
    stat("Drift alarms, 1 h", "none", "sum(increase(ppd_planner_drift_alarms_total[1h]))"),
    stat("Tables refused, 1 h", "none", "sum(increase(ppd_planner_tables_refused_total[1h]))"),
    stat("Drifting now", "none", "max(ppd_planner_drifting)"),
    Panel("Table version", "none", (("max by (table) (ppd_table_version)", "{{table}}"),)),
    Panel(
        "Cells whose verdict is D-local",
        "none",
        (("max by (table, slo_class) (ppd_planner_local_cells)", "{{table}} {{slo_class}}"),),
    ),
    Panel(
        "Verdicts changed",
        "none",
        (("sum by (table) (increase(ppd_planner_verdicts_changed_total[5m]))", "{{table}}"),),
    ),
    Panel(
        "Measured over prior",
        "none",
        (("max by (table, path, quantity) (ppd_planner_ratio)", "{{table}} {{path}} {{quantity}}"),),
        "1: the offline table still holds; 2: twice as slow as it says.",
    ),
    Panel(
        "Exploration",
        "percentunit",
        (("max by (table) (ppd_planner_explore_share)", "{{table}} allowed"),),
        "Share of turns that may take the path not chosen, so that it stays measured.",
    ),
    Panel("Explored turns", "none", (("max by (table) (ppd_planner_explored_turns)", "{{table}}"),)),
    Panel(
        "Drift",
        "none",
        (
            ("max by (table) (ppd_planner_drifting)", "{{table}} drifting"),
            ("sum by (path) (increase(ppd_planner_drift_alarms_total[5m]))", "alarms {{path}}"),
        ),
    ),
    Panel(
        "What a token costs",
        "ms",
        (
            ("max by (table) (ppd_planner_pause_ms)", "{{table}}: on D, to each of its streams"),
            ("max by (table) (ppd_planner_p_token_ms)", "{{table}}: on P, to TTFT"),
        ),
    ),
    Panel(
        "Cache survival",
        "none",
        (("max by (table) (ppd_planner_distrusted_classes)", "{{table}}: classes taken as evicted"),),
        "Classes of idle time and pressure in which a session's KV is not counted on any more.",
    ),
    Panel("Turn records", "reqps", ((rate("ppd_planner_turns_total", "result"), "{{result}}"),)),
    Panel("Leader", "none", (("ppd_planner_leader", "{{instance}}"),)),
    Panel(
        "Background tasks that failed",
        "none",
        ((rate("ppd_task_failures_total", "job, task", "5m"), "{{job}} {{task}}"),),
    ),
)

WORKERS = (
    stat("Engines up", "none", 'sum(up{job="engine"})'),
    stat("Running", "none", "sum(vllm:num_requests_running)"),
    stat("Waiting", "none", "sum(vllm:num_requests_waiting)"),
    stat("KV use, highest", "percentunit", "max(vllm:kv_cache_usage_perc)"),
    stat("KV moved", "Bps", "sum(rate(vllm:nixl_bytes_transferred_sum[1m]))"),
    stat(
        "Failed transfers, 1 h",
        "none",
        "sum(increase(vllm:nixl_num_failed_transfers_total[1h]))",
    ),
    Panel("Running", "none", (("sum by (instance) (vllm:num_requests_running)", "{{instance}}"),)),
    Panel("Waiting", "none", (("sum by (instance) (vllm:num_requests_waiting)", "{{instance}}"),)),
    Panel("KV use", "percentunit", (("max by (instance) (vllm:kv_cache_usage_perc)", "{{instance}}"),)),
    Panel(
        "Tokens generated",
        "none",
        ((rate("vllm:generation_tokens_total", "instance"), "{{instance}} a second"),),
    ),
    Panel(
        "Where prompt tokens came from",
        "none",
        ((rate("vllm:prompt_tokens_by_source_total", "instance, source"), "{{instance}} {{source}}"),),
        stacked=True,
    ),
    Panel(
        "Prefix cache hits",
        "percentunit",
        (
            (
                f"{rate('vllm:prefix_cache_hits_total', 'instance')}"
                f" / ({rate('vllm:prefix_cache_queries_total', 'instance')} > 0)",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Inter-token latency, mean",
        "s",
        ((mean("vllm:inter_token_latency_seconds", "instance"), "{{instance}}"),),
    ),
    Panel(
        "Engine's own TTFT, mean",
        "s",
        ((mean("vllm:time_to_first_token_seconds", "instance"), "{{instance}}"),),
    ),
    Panel(
        "Preemptions", "none", ((rate("vllm:num_preemptions_total", "instance"), "{{instance}} a second"),)
    ),
    Panel("KV pulled", "Bps", ((rate("vllm:nixl_bytes_transferred_sum", "instance"), "{{instance}}"),)),
    Panel(
        "Bandwidth of a transfer",
        "Bps",
        (
            (
                f"{rate('vllm:nixl_bytes_transferred_sum', 'instance')}"
                f" / ({rate('vllm:nixl_xfer_time_seconds_sum', 'instance')} > 0)",
                "{{instance}}",
            ),
        ),
    ),
    Panel(
        "Transfers gone wrong",
        "none",
        (
            (rate("vllm:nixl_num_failed_transfers_total", "instance"), "{{instance}} failed"),
            (rate("vllm:nixl_num_kv_expired_reqs_total", "instance"), "{{instance}} expired"),
        ),
    ),
)

DASHBOARDS = {
    "overview": ("Overview", OVERVIEW),
    "planner": ("Planner", PLANNER),
    "workers": ("Workers", WORKERS),
}


def dashboard(uid: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    drawn, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y, row = 0, y + row, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        drawn.append(_drawn(number, panel, place))
        x, row = x + panel.width, max(row, panel.height)
    links = [
        {"title": other, "type": "link", "url": f"/d/ppd-{name}", "keepTime": True}
        for name, (other, _) in DASHBOARDS.items()
        if name != uid
    ]
    return {
        "uid": f"ppd-{uid}",
        "title": f"ppd: {title}",
        "tags": ["ppd"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": links,
        "panels": drawn,
    }


def _drawn(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom = {
        "fillOpacity": 20 if panel.stacked else 5,
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }
    options: dict[str, Any] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
        if panel.kind == "stat"
        else {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    )
    return {
        "id": number,
        "title": panel.title,
        "description": panel.about,
        "type": panel.kind,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend or "__auto"}
            for i, (query, legend) in enumerate(panel.queries)
        ],
    }


def main() -> None:
    folder = Path(__file__).parent / "dashboards"
    for uid, (title, panels) in DASHBOARDS.items():
        (folder / f"{uid}.json").write_text(json.dumps(dashboard(uid, title, panels), indent=1) + "\n")


if __name__ == "__main__":
    main()
