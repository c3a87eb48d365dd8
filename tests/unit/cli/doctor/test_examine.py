"""How checks are run, whatever they do, and how results are shown."""

import asyncio
import io
import time

import msgspec
import pytest
from rich.console import Console

from ppd.cli.doctor.checks import CHECKS
from ppd.cli.doctor.examine import examine
from ppd.cli.doctor.findings import Check, Finding, Report, Status, failed, ok, warn
from ppd.cli.doctor.show import Show
from ppd.cli.doctor.threads import in_thread
from ppd.cli.doctor.wanted import Requirements
from tests.unit.cli.doctor_wanted import wanted

pytestmark = pytest.mark.unit


def check(name: str, run: object, deadline_s: float = 30, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, "group", "it is done", run, deadline_s, needs)  # type: ignore[arg-type]


async def fine(_: Requirements) -> Finding:
    return ok("all is well")


async def bad(_: Requirements) -> Finding:
    return failed("it is\n broken", "mend it")


async def doubtful(_: Requirements) -> Finding:
    return warn("it is odd", "look at it")


async def raises(_: Requirements) -> Finding:
    raise ZeroDivisionError("by nought")


async def hangs(_: Requirements) -> Finding:
    return await in_thread(lambda: time.sleep(3600))  # type: ignore[func-returns-value]


async def _examine(*checks: Check, patience: float = 1.0) -> Report:
    return await examine(checks, wanted(), patience, lambda _: None, lambda _: None)


async def test_a_report_is_ok_with_warnings_and_not_with_a_failure() -> None:
    assert (await _examine(check("a", fine), check("b", doubtful))).ok
    assert not (await _examine(check("a", bad), check("b", fine))).ok


async def test_findings_are_one_line_each() -> None:
    (result,) = (await _examine(check("a", bad))).results
    assert (result.seen, result.do) == ("it is broken", "mend it")


async def test_a_check_that_breaks_has_failed_and_the_others_run_on() -> None:
    broken, after = (await _examine(check("a", raises), check("b", fine))).results
    assert broken.status is Status.FAILED
    assert "ZeroDivisionError: by nought" in broken.seen
    assert after.status is Status.OK


async def test_a_check_that_hangs_has_failed_at_its_deadline() -> None:
    stuck, after = (await _examine(check("a", hangs, deadline_s=0.05), check("b", fine), patience=2)).results
    assert stuck.status is Status.FAILED
    assert "while it is done" in stuck.seen
    assert "--patience" in stuck.do
    assert after.status is Status.OK


async def test_what_a_failed_check_makes_pointless_is_not_tried() -> None:
    _, second, third = (
        await _examine(check("a", bad), check("b", raises, needs=("x", "a")), check("c", fine, needs=("b",)))
    ).results
    assert (second.status, second.seen) == (Status.NOT_APPLICABLE, "not tried, since a failed")
    assert third.status is Status.OK, "b did not fail"


async def test_a_need_that_was_not_asked_for_hinders_nothing() -> None:
    assert (await _examine(check("b", fine, needs=("a",)))).ok


def test_checks_have_names_of_their_own_and_needs_that_come_before() -> None:
    names = [each.name for each in CHECKS]
    assert len(set(names)) == len(names)
    for i, each in enumerate(CHECKS):
        assert set(each.needs) <= set(names[:i])
        assert each.deadline_s > 0


async def _shown(*checks: Check, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=40)
    show = Show(console, [each.name for each in checks])
    report = await examine(checks, wanted(), 1.0, show.begin, show.end)
    show.close(report)
    return out.getvalue()


async def test_elsewhere_than_on_a_terminal_it_is_plain_lines_of_any_length() -> None:
    async def long(_: Requirements) -> Finding:
        return failed("x" * 100, "y" * 100)

    text = await _shown(check("a", fine), check("bcd", long))
    assert text.splitlines()[:3] == [
        "ok      a    all is well",
        f"FAILED  bcd  {'x' * 100}",
        f"             → {'y' * 100}",
    ]
    assert text.splitlines()[-1] == "1 failed, 0 warnings, 1 ok, 0 not applicable; engines on the CPU"
    assert "\x1b" not in text


async def test_on_a_terminal_it_shows_what_it_waits_for() -> None:
    async def slow(_: Requirements) -> Finding:
        await asyncio.sleep(0.3)
        return ok("done")

    text = await _shown(check("a", slow), terminal=True)
    assert "waits until it is done" in text
    assert "\x1b[" in text


async def test_a_report_survives_json() -> None:
    report = await _examine(check("a", bad), check("b", fine))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
