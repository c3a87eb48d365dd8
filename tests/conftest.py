"""For all tests."""

import os

import hypothesis
import pytest

from tests.support.environment import settle
from tests.support.skips import RefuseSkips

settle()

# A busy machine is no reason to fail. Where CI is set, Hypothesis has a profile without a deadline anyway.
if "CI" not in os.environ:
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        config.pluginmanager.register(RefuseSkips())
