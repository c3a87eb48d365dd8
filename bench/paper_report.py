"""What `ppd bench paper` found, and the page that shows it."""

from collections.abc import Mapping
from statistics import median

import msgspec

from bench import paper_plots as plots
from bench.paper_html import Page
from ppd.core.cells import QPS_LEVELS
from ppd.core.report import (
    BANDS,
    METRICS,
    PAIRS,
    PUBLISHED_DIFFERENT_WINNERS,
    PUBLISHED_TABLE1,
    PUBLISHED_TABLE2,
    PaperReport,
)
from ppd.core.seeds import sweep
from ppd.core.seeds.sweep import Key, Point
from simulator.calibrate import Band, Error, noise
from simulator.sweep import Constants

_TARGET = 0.10
# Share of the 18 workloads, %, at QPS 8, 12, 16, 20.
PUBLISHED_TABLE5 = {
    "3P_1D": (11, 44, 61, 89),
    "3P_1pD": (6, 22, 44, 67),
    "2P_2D": (0, 6, 11, 22),
    "2P_2pD": (0, 0, 6, 11),
    "4R": (0, 0, 0, 0),
}
# The released sweep: workloads whose first or second turn has a p99 end to end beyond 30 s.
RAW_TABLE5 = {
    "3P_1D": (0, 11, 11, 11),
    "3P_1pD": (11, 50, 55, 55),
    "2P_2D": (5, 16, 50, 55),
    "2P_2pD": (5, 16, 44, 50),
    "4R": (5, 22, 50, 50),
}
_WORST = 25


class Results(msgspec.Struct):
    constants: Constants
    sweep_s: float
    points: int
    simulated: PaperReport | None  # None where not all points were run
    raw: PaperReport
    bands: list[Band]
    errors: list[Error]
    crashed: list[str]
    interference: dict[str, float]
    links: list[dict[str, float]]
    weights_seed: list[tuple[float, float]]
    weights_simulated: list[tuple[float, float]]
    wildchat: dict[str, dict[str, int]]
    failures: dict[str, list[float]]
    path_dependence: list[tuple[int, float]]
    handoff: list[tuple[float, float]]


def write_html(results: Results, points: Mapping[Key, Point]) -> str:
    """Raises ImportError without matplotlib."""
    page = Page("The PPD paper from the simulator")
    page.text(
        f"{results.points} points of the sweep in {results.sweep_s} s, constants {results.constants}. "
        "[raw] is computed again from the released measurements, earlier than the published figures."
    )
    _truth(page, results)
    _tables(page, results)
    _sweep_figures(page, points)
    _experiments(page, results)
    return page.html()


def _truth(page: Page, results: Results) -> None:
    page.heading("Is it true? Predicted against measured, on points that were not fitted")
    page.figure(plots.predicted_against_measured(results.errors), "predicted against measured")
    page.text(
        "Median absolute relative error of turn 2, by placement and QPS band; the sign is the median's. "
        f"The target is {_TARGET:.0%}; * marks what misses it. Scatter: how far measured TTFTs lie from "
        "where their neighbours in rate put them, which no model that is smooth in the rate could undercut."
    )
    scatter = noise(sweep.points().values())
    page.table(
        ("placement", "QPS", "points", "TTFT", "scatter", "TTFT p50", "TPOT"),
        [
            (
                b.config,
                b.band,
                b.points,
                _error(b.ttft, b.ttft_bias),
                f"{scatter.get((b.config, b.band), 0.0):.1%}",
                _error(b.ttft_p50, 0.0),
                _error(b.tpot, b.tpot_bias),
            )
            for b in results.bands
        ],
    )
    for name in ("ttft", "tpot"):
        values = [abs(getattr(e, name)) for e in results.errors]
        met = sum(getattr(b, name) <= _TARGET for b in results.bands)
        page.text(
            f"{name.upper()}: median {median(values):.1%} over {len(values)} points; "
            f"{met} of {len(results.bands)} bands within the target."
        )
    page.heading("Where it is wrong")
    worst = sorted(results.errors, key=lambda e: -abs(e.ttft))[:_WORST]
    page.table(
        ("placement", "workload", "QPS", "TTFT measured", "predicted", "TPOT measured", "predicted"),
        [
            (
                e.measured.config,
                e.measured.workload,
                f"{e.measured.qps:g}",
                f"{e.measured.ttft_ms:.0f}",
                f"{e.simulated.ttft_ms:.0f}",
                f"{e.measured.tpot_ms:.1f}",
                f"{e.simulated.tpot_ms:.1f}",
            )
            for e in worst
        ],
    )
    page.text(f"Crashed in the raw data, not fitted ({len(results.crashed)}): {'; '.join(results.crashed)}.")


def _three(simulated: float, raw: float, published: float | None) -> str:
    return f"{simulated:.1f} [{raw:.1f}] ({'-' if published is None else published})"


def _error(size: float, bias: float) -> str:
    sign = "" if not bias else "+" if bias > 0 else "-"
    return f"{sign}{size:.1%}{' *' if size > _TARGET else ''}"


def _tables(page: Page, results: Results) -> None:
    simulated, raw = results.simulated, results.raw
    if simulated is None:
        page.text("Tables 1 and 2 need the whole sweep: run without --quick.")
    else:
        page.heading("Table 1: turn-2 TTFT from x=0 to x=1, %: simulated [raw] (published)")
        page.table(
            ("", *BANDS),
            [
                (
                    x0,
                    *(
                        _three(simulated.table1[x0][b], raw.table1[x0][b], PUBLISHED_TABLE1[x0][b])
                        for b in BANDS
                    ),
                )
                for x0 in PAIRS
            ],
        )
        page.heading("Table 2: share of the 180 cells won, %: simulated [raw] (published)")
        page.table(
            ("", *METRICS),
            [
                (
                    name,
                    *(
                        _three(won[m], raw.table2[name][m], PUBLISHED_TABLE2.get(name, {}).get(m))
                        for m in METRICS
                    ),
                )
                for name, won in simulated.table2.items()
            ],
        )
        page.text(
            f"Different winners for TTFT and TPOT: {simulated.different_winners} % "
            f"[{raw.different_winners}] ({PUBLISHED_DIFFERENT_WINNERS})."
        )
    page.heading(
        "Table 3: WildChat-like chats, wins of 27 points (published: x=0 10/0/4, x=1 5/13/27, PPD 12/14/27)"
    )
    page.table(
        ("", "TPOT", "TTFT", "100 % success"),
        [(name, w["tpot"], w["ttft"], w["success"]) for name, w in results.wildchat.items()],
    )
    page.text(
        "A tie counts for all. At weights (1, 1) the released measurements say D-local in nearly every cell, "
        "so PPD is x=1 here; the paper's 12 and 14 wins need a table with other verdicts than theirs gives. "
        "Each hand-off holds a step of D up in the fitted model, hence x=0 wins no TPOT at these rates."
    )
    page.heading("Table 5: workloads with a request beyond 30 s, %, at QPS 8, 12, 16, 20")
    page.text(
        "By the client's clock, whose own queue counts. That 4R never fails, as published, does not agree "
        "with the released measurements, where half of its workloads have a first turn beyond 30 s at QPS 16 "
        "and 20. Crashes, which the measured system had too, are not modelled."
    )
    page.table(
        ("simulated [raw, crashes apart] (published)", "8", "12", "16", "20"),
        [
            (c, *(_three(*each) for each in zip(row, RAW_TABLE5[c], PUBLISHED_TABLE5[c], strict=True)))
            for c, row in results.failures.items()
        ],
    )


def _sweep_figures(page: Page, points: Mapping[Key, Point]) -> None:
    page.heading("Figures 1, 4, 9 to 11: how TTFT and TPOT move with placement, workload and rate")
    page.text(
        "What exactly these five figures draw is not known to us beyond their subject. These plots cover it: "
        "the change from x=0 to x=1 in every cell, and three workloads against the rate, measured too."
    )
    page.figure(plots.change_map(points, PAIRS, QPS_LEVELS), "change of turn-2 TTFT by workload and rate")
    for workload in ("small_tiny", "large_mid_bal", "large_very_long_gen"):
        page.figure(plots.against_rate(points, sweep.points(), workload), f"{workload} against the rate")


def _experiments(page: Page, results: Results) -> None:
    page.heading("Figures 2, 7, 8: what a prefill does to running decodes, % of TPOT over four tokens")
    page.text(
        "Published: +48 % with one full prefill and +2 % with one append at batch 200; +57 % and +21 % with "
        "four. With shared contexts the engine reads one context for all until the prefill breaks that: it "
        "makes every interference look larger, an append's most: the released test shares its contexts."
    )
    page.table(("case", "%"), results.interference.items())
    page.heading("Figure 5: a slower link, 1P_3D, QPS 1, WildChat-like")
    page.text(
        "Published: x=0 TTFT 143.7 to 170.6 ms from 150 to 10 GB/s, end to end +4.7 %; PPD 51 ms, +0.9 %."
    )
    page.table(tuple(results.links[0]), [[f"{v:.1f}" for v in row.values()] for row in results.links])
    page.heading("Figure 6: share D-local, %, as the weight of TPOT grows (published: 95, 50, 20 at 1, 3, 6)")
    page.text(
        "From the released sweep no such curve comes: x=1 saves half of the TTFT and adds 1 to 3 % to TPOT, "
        "so the verdict of a cell turns at weights of 20 and more."
    )
    page.table(
        ("w_tpot", "seed table", "simulated table"),
        [
            (f"{w:g}", f"{a:.0f}", f"{b:.0f}")
            for (w, a), (_, b) in zip(results.weights_seed, results.weights_simulated, strict=True)
        ],
    )
    page.heading("Path dependence: a last turn by P->D after a streak of D-local turns")
    x, y = zip(*results.path_dependence, strict=True)
    page.figure(plots.lines(x, {"TTFT": y}, "D-local turns in a row before", "ms", False), "path dependence")
    page.heading("The hand-off of 4,096 tokens with a lean connector, against the link")
    x, y = zip(*results.handoff, strict=True)
    page.figure(plots.lines(x, {"TTFT of P->D": y}, "GB/s", "ms", True), "hand-off against the link")
