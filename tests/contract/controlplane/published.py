"""A table as a planner publishes it."""

from ppd.core.records import CellRecord, Estimate, PathEstimate, TableSnapshot


def table(version: int, ttft_local: float) -> TableSnapshot:
    def paths(local: float) -> dict[str, PathEstimate]:
        tpot = Estimate(mean=10.0)
        return {
            "p-d": PathEstimate(ttft_ms=Estimate(mean=100.0), tpot_ms=tpot),
            "d-local": PathEstimate(ttft_ms=Estimate(mean=local), tpot_ms=tpot),
        }

    return TableSnapshot(
        model="m",
        placement="1P1D",
        version=version,
        explore_share=0.0,  # each turn goes where the figures say
        weights={"balanced": (1.0, 1.0)},
        cells=[CellRecord(context="small", ratio="tiny", qps=1.0, paths=paths(ttft_local))],
    )
