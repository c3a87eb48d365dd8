"""What a check finds, and the report that `--json` prints."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from ppd.cli.doctor.wanted import Requirements
from ppd.runtime.problem import Problem


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """`seen` and `do` are one line each; a warning or failure always says what to do."""

    status: Status
    seen: str
    do: str = ""
    details: dict[str, Any] = {}


def ok(seen: str, **details: Any) -> Finding:
    return Finding(status=Status.OK, seen=seen, details=details)


def warn(seen: str, do: str, **details: Any) -> Finding:
    return Finding(status=Status.WARN, seen=seen, do=do, details=details)


def failed(seen: str, do: str, **details: Any) -> Finding:
    return Finding(status=Status.FAILED, seen=seen, do=do, details=details)


def failed_by(problem: Problem, **details: Any) -> Finding:
    return failed(problem.seen, problem.do, **details)


def not_applicable(seen: str) -> Finding:
    return Finding(status=Status.NOT_APPLICABLE, seen=seen)


class Check(NamedTuple):
    name: str
    group: str
    waits_for: str  # completes "waits until …"
    run: Callable[[Requirements], Awaitable[Finding]]
    deadline_s: float
    needs: tuple[str, ...] = ()  # checks without which this one can show nothing


class Result(msgspec.Struct, kw_only=True, frozen=True):
    check: str
    group: str
    status: Status
    seen: str
    do: str
    took_s: float
    details: dict[str, Any]


class Report(msgspec.Struct, kw_only=True, frozen=True):
    ok: bool  # no check failed; warnings are allowed
    backend: str  # what the engines would run on
    results: list[Result]
