"""A table as the page's heat map needs it: every cell's verdict under every SLO class, and the figures."""

from typing import Any

import msgspec

from ppd.core import cells
from ppd.core.score import Weights, slo_classes
from ppd.core.table import Table


def grid(table: Table) -> dict[str, Any]:
    """`verdicts[class][slot]` is [score, slot of the cell whose figures decide]; a score above 0 is D-local.
    `classes[class]` is its two weights and its two limits in ms, 0 = none.

    `cells[slot]` has a cell's own figures by path, empty where nothing was measured. Slots are those of
    `ppd.core.cells`: context, then type of turn, then QPS level.
    """
    classes = slo_classes(table.snapshot)
    own = {
        cells.make_cell(record.context, record.ratio, record.qps).slot: record
        for record in table.snapshot.cells
    }
    return {
        "model": table.model,
        "placement": table.placement,
        "version": table.version,
        "source": table.snapshot.source,
        "hardware": table.snapshot.hardware,
        "created_unix_s": table.snapshot.created_unix_s,
        "frozen": table.snapshot.frozen,
        "explore_share": table.explore_share,
        "levels": cells.QPS_LEVELS,
        "contexts": [[context, cells.CONTEXT_TOKENS[context]] for context in cells.Context],
        "ratios": [[ratio, *cells.SHAPES[ratio]] for ratio in cells.Ratio],
        "classes": {name: [w.ttft, w.tpot, w.ttft_limit_ms, w.tpot_limit_ms] for name, w in classes.items()},
        "verdicts": {name: _verdicts(table, weights) for name, weights in classes.items()},
        "cells": [
            {
                "paths": msgspec.to_builtins(own[slot].paths) if slot in own else {},
                "measured_qps": own[slot].measured_qps if slot in own else 0.0,
            }
            for slot in range(cells.N_CELLS)
        ],
    }


def _verdicts(table: Table, weights: Weights) -> list[list[float]]:
    return [
        [float(f"{verdict.score:.4g}"), verdict.row.source.slot]
        for verdict in table.verdicts(weights.ttft, weights.tpot)
    ]
