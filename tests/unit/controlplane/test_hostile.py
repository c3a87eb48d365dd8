"""Many odd requests: never a 5xx, never a crash, nothing left behind."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.unit.controlplane.conftest import Stack

pytestmark = pytest.mark.unit

_KEYS = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "min_tokens",
    "tools",
    "user",
    "prompt",
    "kv_transfer_params",
    "conversation",
    "prompt_cache_key",
    "cache_salt",
    "echo",
    "x",
]


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(12 if depth < 4 else 8)
    simple = [None, True, -1, 10**30, 1.5e308, "", "m", "\u0000\u2028😀" * rng.randrange(5)]
    if kind < 8:
        return simple[kind]
    if kind < 10:
        return [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_KEYS): odd_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def odd_body(rng: random.Random) -> bytes:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(_KEYS)] = odd_value(rng)
    if rng.random() < 0.3:
        body["messages"] = [
            {rng.choice(["role", "content", "name", "tool_calls"]): odd_value(rng)} for _ in range(2)
        ]
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    kind = rng.randrange(10)
    if kind == 0:
        return data[: rng.randrange(len(data))]
    if kind == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 2:
        return data[:-1] + b',"model":"m","stream":' + rng.choice([b"true", b"0", b'"yes"']) + b"}"
    return data


async def test_generated_requests_never_fail_the_server(stack: Stack) -> None:
    rng = random.Random(7)
    statuses: dict[int, int] = {}

    async def some(count: int) -> None:
        for _ in range(count):
            path = rng.choice(
                ["/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/tokenize"]
            )
            async with stack.http.post(stack.url + path, data=odd_body(rng)) as response:
                await response.read()
                statuses[response.status] = statuses.get(response.status, 0) + 1

    await asyncio.gather(*(some(150) for _ in range(8)))
    assert sum(statuses.values()) == 1200
    assert set(statuses) <= {200, 400, 404}, statuses
    assert statuses[200] > 50
    assert statuses[400] > 50
    assert stack.frontend.turns.gate.running == 0
    assert all(worker.running == 0 for worker in stack.frontend.cluster.workers.values())


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n{",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
    ],
)
async def test_broken_http_hurts_nobody_else(stack: Stack, raw: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(raw)
    writer.write_eof()
    await asyncio.sleep(0)
    assert (await stack.ask("hi"))[0] == "p-d"
    writer.close()


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
