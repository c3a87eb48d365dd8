"""The stacks under test. They need a Docker engine and images: `make test-compose` sees to both."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.compose.stack import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            if "PPD_TEST_COMPOSE" not in os.environ:
                item.add_marker(pytest.mark.skip(reason="run by `make test-compose`"))


def started(workers: str, folder: Path) -> Iterator[Stack]:
    stack = Stack(Path(os.environ["PPD_TEST_COMPOSE"]), workers, folder)
    stack.compose("down", "-v", "--remove-orphans")
    stack.compose("build", timeout_s=3600)
    try:
        stack.compose("up", "-d", timeout_s=900)
        yield stack
    finally:
        print(f"the containers' logs are in {folder}")
        stack.compose("down", "-v", "--remove-orphans", timeout_s=400)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says where the containers' logs of that moment are."""
    report = yield
    stacks = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Stack)]
    if report.failed and stacks:
        report.sections.append(("the containers' logs", str(stacks[0].keep_logs())))
    return report


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """1P3D of simulated engines."""
    yield from started("sim-1P3D.yaml", tmp_path_factory.mktemp("sim"))


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """1P1D of real engines on the CPU."""
    yield from started("cpu-1P1D.yaml", tmp_path_factory.mktemp("cpu"))
