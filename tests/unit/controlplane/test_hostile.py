"""Many odd requests: never a 5xx that is not documented, never a crash, nothing left behind."""

import asyncio
import json

import pytest

from tests.support.hostile import Assault
from tests.unit.controlplane.conftest import P_D, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


async def test_generated_requests_never_fail_the_server() -> None:
    async with running(P_D, admin_key="k", body_s=2.0) as stack:
        async with stack.http.get(stack.url + "/openapi.json") as response:
            document = await response.json()
        stack.engines["d0"].cached = 10**9  # as a D says that pulled what P computed
        assault = Assault(stack.url, 7, document)
        await assault.run(1200, 150)
        assert not assault.faults, "\n".join(assault.faults[:5])
        assert sum(assault.statuses.values()) > 1000, assault.statuses
        for status in (200, 400, 403, 404, 405, 415):
            assert assault.statuses[status] > 3, assault.statuses
        assert (await stack.ask("hi"))[:2] == ("p-d", "first-turn")
        async with asyncio.timeout(30):
            while stack.frontend.gate.running:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert stack.frontend.gate.queued == 0
        assert all(worker.running == 0 for worker in stack.frontend.cluster.workers.values())


async def test_pipelined_requests_are_answered_in_order(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    one = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        len(one),
        one,
    )
    writer.write(request * 3)
    data = b""
    async with asyncio.timeout(20):
        while data.count(b"[DONE]") < 3:
            data += await reader.read(65536)
    assert data.count(b"HTTP/1.1 200") == 3
    writer.close()


async def test_a_half_closed_client_has_hung_up(stack: Stack) -> None:
    """HTTP clients do not close their sending side and read on; who does is gone, and costs no more."""
    stack.engines["d0"].faults.append(Fault("stall", after=2))
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    one = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(one)
    writer.write(head + one)
    async with asyncio.timeout(20):
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.write_eof()
        while not stack.engines["d0"].requests[0].aborted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.close()


async def test_garbage_after_a_pipeline_is_refused_in_its_turn(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    one = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(one)
    writer.write((head + one) * 2 + b"GARBAGE\r\n\r\n")
    async with asyncio.timeout(20):
        data = await reader.read()
    assert data.count(b"data: [DONE]\n\n\r\n0\r\n\r\nHTTP/1.1 ") == 2
    assert data.rpartition(b"HTTP/1.1 ")[2].startswith(b"400 ")
    writer.close()
