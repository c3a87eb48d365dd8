"""Where CI is set, a skipped test is a failed one, unless its reason stands here.

A test that is skipped everywhere proves nothing, and nobody sees it. `.ci/run` installs what tests need.
"""

from collections.abc import Generator

import pytest

# The reason that a test gives, and why no run of CI can do without it.
ALLOWED = {
    "run by `make test-compose`": "needs a Docker engine and an hour of building; a check of its own",
    "aiperf is not installed": "its packages do not fit beside vLLM's",
    "only root gives files away": "CI may run as another user",
}


def refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a skip a failure, if its reason is not allowed. An expected failure is no skip."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    where, line, reason = report.longrepr
    reason = reason.removeprefix("Skipped: ")
    if reason not in ALLOWED:
        report.outcome = "failed"
        report.longrepr = (
            f"{where}:{line}: skipped in CI: {reason}\n"
            "Have .ci/run install what is missing, or allow the reason in tests/support/skips.py"
        )


class RefuseSkips:
    """The pytest plugin."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        refuse(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        refuse(report)
        return report
