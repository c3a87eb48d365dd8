"""Runs the checks one after the other, so that none disturbs another's measurement."""

import asyncio
import time
from collections.abc import Callable, Sequence

from ppd.cli.doctor.findings import Check, Finding, Report, Result, Status, failed, not_applicable
from ppd.cli.doctor.wanted import Requirements


async def examine(
    checks: Sequence[Check],
    wanted: Requirements,
    patience: float,
    on_begin: Callable[[Check], None],
    on_end: Callable[[Result], None],
) -> Report:
    """Never raises for what a check does: one that takes too long or breaks has failed.

    `patience` multiplies all deadlines.
    """
    results: list[Result] = []
    broken: set[str] = set()
    for check in checks:
        on_begin(check)
        began_s = time.monotonic()
        without = next((name for name in check.needs if name in broken), "")
        finding = (
            not_applicable(f"not tried, since {without} failed")
            if without
            else await _run(check, wanted, patience)
        )
        if finding.status is Status.FAILED:
            broken.add(check.name)
        result = Result(
            check=check.name,
            group=check.group,
            status=finding.status,
            seen=_line(finding.seen),
            do=_line(finding.do),
            took_s=round(time.monotonic() - began_s, 3),
            details=finding.details,
        )
        results.append(result)
        on_end(result)
    return Report(ok=not broken, backend=wanted.backend, results=results)


async def _run(check: Check, wanted: Requirements, patience: float) -> Finding:
    deadline_s = check.deadline_s * patience
    try:
        return await asyncio.wait_for(check.run(wanted), deadline_s)
    except TimeoutError:
        return failed(
            f"no result within {deadline_s:.0f} s, while {check.waits_for}", "give it longer: `--patience 3`"
        )
    except Exception as error:
        return failed(
            f"the check itself broke: {type(error).__name__}: {error}", "report this with `ppd doctor --json`"
        )


def _line(text: str) -> str:
    return " ".join(text.split())
