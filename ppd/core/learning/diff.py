"""What differs between two versions of a table: verdicts, figures, weights."""

from math import log
from typing import Any

from ppd.core import cells
from ppd.core.score import slo_classes
from ppd.core.table import Table

_SAME = log(1.01)


def diff(old: Table, new: Table) -> dict[str, Any]:
    """As plain data: verdicts that changed, per cell and SLO class; figures that moved by more than 1 %."""
    classes = slo_classes(new.snapshot)
    before = slo_classes(old.snapshot)
    verdicts = []
    for name, weights in classes.items():
        was = before.get(name, weights)
        pairs = zip(old.verdicts(was.ttft, was.tpot), new.verdicts(weights.ttft, weights.tpot), strict=True)
        verdicts += [
            {
                "cell": a.cell,
                "slo_class": name,
                "from": a.path,
                "to": b.path,
                "score_from": round(a.score, 4),
                "score_to": round(b.score, 4),
            }
            for a, b in pairs
            if a.path is not b.path
        ]
    return {
        "from": old.version,
        "to": new.version,
        "source_from": old.snapshot.source,
        "source_to": new.snapshot.source,
        "weights_from": old.snapshot.weights,
        "weights_to": new.snapshot.weights,
        "verdicts": verdicts,
        "figures": _figures(old, new),
    }


def _figures(old: Table, new: Table) -> list[dict[str, Any]]:
    found = []
    for cell in cells.CELLS:
        before, after = old.lookup(cell.slot), new.lookup(cell.slot)
        if not before.exact and not after.exact:
            continue
        for path, b in after.expected.items():
            a = before.expected.get(path)
            if (
                a is None
                or abs(log(b.ttft_ms / a.ttft_ms)) > _SAME
                or abs(log(b.tpot_ms / a.tpot_ms)) > _SAME
            ):
                found.append(
                    {
                        "cell": str(cell),
                        "path": path,
                        "ttft_ms": [a and a.ttft_ms, b.ttft_ms],
                        "tpot_ms": [a and a.tpot_ms, b.tpot_ms],
                    }
                )
    return found
