"""The planner's metrics: its work, and what it learned, to be plotted over time."""

from prometheus_client import Counter, Gauge

from ppd.core.learning.learner import Learned
from ppd.core.learning.publication import mean_pause_ms
from ppd.core.learning.survival import distrusted
from ppd.core.names import Route
from ppd.core.records import TableSnapshot
from ppd.core.score import slo_classes
from ppd.core.table import Table

LEADER = Gauge("ppd_planner_leader", "1 on the planner that leads")
TURNS = Counter("ppd_planner_turns", "Turn records by what became of them", ["result"])
LAG = Gauge("ppd_planner_turns_lag", "Turn records that wait in the stream")
TABLE_VERSION = Gauge("ppd_table_version", "The newest good version known", ["table"])
TABLES_REFUSED = Counter("ppd_planner_tables_refused", "Values of the bucket that were no good table")
FLIPS = Counter("ppd_planner_verdicts_changed", "Verdicts that the online loop changed", ["table"])
DRIFT = Counter("ppd_planner_drift_alarms", "Lasting shifts of a path's measurements", ["path"])

EXPLORE_SHARE = Gauge("ppd_planner_explore_share", "Share of turns that may take the other path", ["table"])
EXPLORED = Gauge("ppd_planner_explored_turns", "Turns that took the other path, since the prior", ["table"])
DRIFTING = Gauge("ppd_planner_drifting", "1 for a while after drift was detected", ["table"])
LOCAL_CELLS = Gauge("ppd_planner_local_cells", "Cells whose verdict is D-local", ["table", "slo_class"])
RATIO = Gauge("ppd_planner_ratio", "Measured over prior, of all cells", ["table", "path", "quantity"])
PAUSE = Gauge("ppd_planner_pause_ms", "By which a local token holds up each stream", ["table"])
P_TOKEN = Gauge("ppd_planner_p_token_ms", "What a token that P computes adds to TTFT", ["table"])
LINK = Gauge("ppd_planner_link_bytes_per_second", "What KV transfers P->D reach; 0 = not known", ["table"])
LINK_SETUP = Gauge("ppd_planner_link_setup_ms", "What a KV transfer takes whatever its size", ["table"])
DISTRUSTED = Gauge("ppd_planner_distrusted_classes", "Idle and pressure classes taken as evicted", ["table"])


def show_table(key: str, snapshot: TableSnapshot) -> None:
    table = Table(snapshot)
    EXPLORE_SHARE.labels(key).set(snapshot.explore_share)
    for name, weights in slo_classes(snapshot).items():
        local = sum(v.path is Route.D_LOCAL for v in table.verdicts(weights.ttft, weights.tpot))
        LOCAL_CELLS.labels(key, name).set(local)


def show_learned(key: str, learned: Learned) -> None:
    EXPLORED.labels(key).set(learned.explored)
    DRIFTING.labels(key).set(learned.drifting)
    for path, pair in learned.ratios.paths.items():
        RATIO.labels(key, path, "ttft").set(pair.ttft.mean)
        RATIO.labels(key, path, "tpot").set(pair.tpot.mean)
    PAUSE.labels(key).set(max(0.0, mean_pause_ms(learned)))
    P_TOKEN.labels(key).set(learned.prefill.ms_per_token())
    link = learned.link.cost()
    LINK.labels(key).set(link.bytes_per_s)
    LINK_SETUP.labels(key).set(link.setup_ms)
    DISTRUSTED.labels(key).set(len(distrusted(learned.survival.grid())))
