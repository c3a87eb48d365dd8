"""`kill -9` of each process, one at a time: status and /health tell the truth, and it serves again alone."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.local_stack import LocalStack, eventually
from tests.support.processes import commands

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@contextlib.contextmanager
def _nobody_helps(stack: LocalStack) -> Iterator[None]:
    """The supervisor is stopped meanwhile, so that what it would mend can be looked at."""
    supervisor = stack.state()["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)


def _health(stack: LocalStack) -> dict[str, Any] | None:
    try:
        return httpx.get(f"{stack.url}/health", timeout=5).json()
    except httpx.HTTPError:
        return None


def _model(stack: LocalStack) -> dict[str, Any]:
    """What /health says about the model."""
    return (_health(stack) or {}).get("models", {}).get("smollm2", {})


def _serves(stack: LocalStack) -> bool:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    try:
        return httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


def _down(stack: LocalStack) -> set[str]:
    return {name for name, part in stack.status()["parts"].items() if not part["ok"]}


def _engines(stack: LocalStack) -> set[int]:
    return {pid for pid, line in commands(stack.processes()).items() if "api_server" in " ".join(line)}


def _recovers(stack: LocalStack, killed: str, before: dict[str, int]) -> None:
    """All parts are up again, a chat is answered, and nothing but `killed` has a new pid."""
    eventually(lambda: _down(stack) == set() and stack.pids()[killed] != before[killed], within_s=240)
    eventually(lambda: _serves(stack))
    after = stack.pids()
    assert {name for name in before if after[name] != before[name]} == {killed}


def _kill(stack: LocalStack, name: str) -> dict[str, int]:
    before = stack.pids()
    os.kill(before[name], signal.SIGKILL)
    return before


def test_frontend(real_stack: LocalStack) -> None:
    engines = _engines(real_stack)
    with _nobody_helps(real_stack):
        before = _kill(real_stack, "frontend")
        assert _down(real_stack) == {"frontend"}
        assert _health(real_stack) is None
    _recovers(real_stack, "frontend", before)
    assert _engines(real_stack) == engines


def test_planner(real_stack: LocalStack) -> None:
    with _nobody_helps(real_stack):
        before = _kill(real_stack, "planner")
        assert _down(real_stack) == {"planner"}
        assert _serves(real_stack)  # with the table last known
    _recovers(real_stack, "planner", before)


def test_etcd(real_stack: LocalStack) -> None:
    engines = _engines(real_stack)
    with _nobody_helps(real_stack):
        before = _kill(real_stack, "etcd")
        assert "etcd" in _down(real_stack)
        assert real_stack.status()["workers"] is None
        eventually(lambda: (_health(real_stack) or {}).get("etcd") != "connected", within_s=30)
        assert _serves(real_stack)  # by the workers last known
    _recovers(real_stack, "etcd", before)
    assert _engines(real_stack) == engines


def test_nats(real_stack: LocalStack) -> None:
    engines = _engines(real_stack)
    with _nobody_helps(real_stack):
        before = _kill(real_stack, "nats")
        assert _down(real_stack) >= {"nats", "planner"}
        assert real_stack.status()["sessions"] is None
        eventually(lambda: (_health(real_stack) or {}).get("nats") != "connected", within_s=30)
        assert _serves(real_stack)
    _recovers(real_stack, "nats", before)
    assert _engines(real_stack) == engines


@pytest.mark.parametrize(("name", "role"), [("p0", "prefill"), ("d0", "decode")])
def test_worker(real_stack: LocalStack, name: str, role: str) -> None:
    """Meanwhile the other engine serves turns whole."""

    def registered() -> set[str]:
        return {worker["record"]["name"] for worker in real_stack.status()["workers"]}

    assert registered() == {"p0", "d0"}
    with _nobody_helps(real_stack):
        before = _kill(real_stack, name)
        assert name in _down(real_stack)
        # Its lease ends by itself.
        eventually(lambda: name not in registered(), within_s=30)
        eventually(lambda: _model(real_stack).get("missing") == [role], within_s=30)
        assert _model(real_stack)["servable"]
        assert _serves(real_stack)
    _recovers(real_stack, name, before)
    assert registered() == {"p0", "d0"}
