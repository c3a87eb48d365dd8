"""Answers that are given before a request is all there, and what answers say of the request."""

import asyncio
import socket
import time

import pytest

from controlplane.errors import ANTHROPIC, OPENAI, RESPONSES, ApiError
from controlplane.http import server
from ppd.core.names import Role
from tests.unit.controlplane.conftest import P_D, Stack, running

pytestmark = pytest.mark.unit

CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
LONG = "n" * 60_000


async def unread(port: int, begun: bytes, more: bytes = b"") -> tuple[bytes, float]:
    """What comes back until the server closes, and after how long; all the while `more` is sent on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began_s = time.monotonic()
    answer = asyncio.create_task(reader.read())
    try:
        writer.write(begun)
        async with asyncio.timeout(20):
            while more and not answer.done():
                writer.write(more)
                await asyncio.sleep(0.01)
            return await answer, time.monotonic() - began_s
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (CHAT + b"content-length: 99999999\r\n\r\n{", b""),
        (CHAT + b"content-length: 99999999\r\n\r\n{", b" " * 50_000),
        (CHAT + b"transfer-encoding: chunked\r\n\r\n", b"2710\r\n" + b" " * 10_000 + b"\r\n"),
    ],
    ids=["silent", "sending on", "without an end"],
)
async def test_a_body_that_is_too_large_ends_its_connection(head: bytes, more: bytes) -> None:
    """The answer reaches a client that goes on sending, and nothing of the rest is taken for a request."""
    async with running(P_D, max_body_bytes=20_000) as stack:
        answer, took_s = await unread(stack.port, head, more)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer
        assert answer.count(b"HTTP/1.1") == 1
        assert took_s < 10


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n", b"404"),
        (b"GET /live HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n", b"200"),
        (CHAT + b"content-encoding: gzip\r\ncontent-length: 1000\r\n\r\n", b"415"),
        (CHAT + b"content-length: 1000\r\n\r\n{", b"408"),
    ],
)
async def test_so_does_whatever_is_answered_early(head: bytes, status: bytes) -> None:
    async with running(P_D, body_s=0.2) as stack:
        answer, _ = await unread(stack.port, head)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer


async def test_a_request_that_was_read_keeps_its_connection(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    for _ in range(3):
        writer.write(CHAT + b"content-length: 1\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" not in head
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/responses", "POST"),
        ("POST", "/health", "GET"),
        ("DELETE", "/v1/models/m", "GET"),
        ("POST", "/ui/app.js", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    stack: Stack, method: str, path: str, allowed: str
) -> None:
    async with stack.http.request(method, stack.url + path) as response:
        assert response.status == 405
        assert response.headers["allow"] == allowed


@pytest.mark.parametrize(
    "body",
    [
        {"model": LONG, "messages": [{"role": "user", "content": "x"}]},
        {"model": "m", "messages": [{"role": LONG, "content": "x"}]},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream_options": LONG},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], LONG: {}, "n": LONG},
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 10**4000},
    ],
)
async def test_no_answer_repeats_what_is_long(stack: Stack, body: dict[str, object]) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        async with stack.http.post(stack.url + path, json=body) as response:
            if response.status != 200:
                assert len(await response.read()) < 3000


async def test_nor_does_a_path_or_an_engines_word(stack: Stack) -> None:
    for path in (f"/v1/models/{LONG}", f"/{LONG}", f"/admin/sessions?limit={LONG}"):
        async with stack.http.get(stack.url + path) as response:
            assert 400 <= response.status < 500
            assert len(await response.read()) < 3000
    for shape in (OPENAI, RESPONSES, ANTHROPIC):
        assert len(shape.body(ApiError(400, LONG, param=LONG, code=LONG))) < 3000


async def test_a_short_name_is_repeated_whole() -> None:
    async with (
        running({"r0": Role.REPLICA}) as stack,
        await stack.chat("hi", **{"model": "nope"}) as response,
    ):
        assert (await response.json())["error"]["message"] == "The model `nope` does not exist."


def test_until_a_server_can_serve_clients_are_refused() -> None:
    with server.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            server.bind("127.0.0.1", port)
