"""The planner's metrics."""

from prometheus_client import Counter, Gauge

LEADER = Gauge("ppd_planner_leader", "1 on the planner that leads")
TURNS = Counter("ppd_planner_turns", "Turn records by what became of them", ["result"])
LAG = Gauge("ppd_planner_turns_lag", "Turn records that wait in the stream")
TABLE_VERSION = Gauge("ppd_table_version", "The newest good version known", ["table"])
