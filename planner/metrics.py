"""The planner's metrics."""

from prometheus_client import Counter, Gauge

LEADER = Gauge("ppd_planner_leader", "1 on the planner that leads")
TURNS = Counter("ppd_planner_turns", "Turn records by what became of them", ["result"])
LAG = Gauge("ppd_planner_turns_lag", "Turn records that wait in the stream")
TABLE_VERSION = Gauge("ppd_table_version", "The newest good version known", ["table"])
TABLES_REFUSED = Counter("ppd_planner_tables_refused", "Values of the bucket that were no good table")
FLIPS = Counter("ppd_planner_verdicts_changed", "Verdicts that the online loop changed", ["table"])
DRIFT = Counter("ppd_planner_drift_alarms", "Lasting shifts of a path's measurements", ["path"])
