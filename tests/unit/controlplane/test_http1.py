"""The server on the wire: framing by version and method, keep-alive, bodies, and its end."""

import asyncio
import json

import pytest

from tests.unit.controlplane.fake_application import Served

pytestmark = pytest.mark.unit


async def test_a_stream_is_framed_as_its_client_understands() -> None:
    async with Served() as served:
        answer = await served.talk(b"GET /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"\r\ntransfer-encoding: chunked" in head
        assert b"\r\nx-a: b" in head
        assert body == b"3\r\none\r\n3\r\ntwo\r\n3\r\nend\r\n0\r\n\r\n"
        head, _, body = (await served.talk(b"GET /stream HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"\r\nconnection: close" in head
        assert body == b"onetwoend"
        answer = await served.talk(b"HEAD /stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n")
        assert b"one" not in answer


async def test_one_connection_carries_many_requests_in_order() -> None:
    async with Served() as served:
        many = b"".join(
            b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n%03d" % (i, i) for i in range(100)
        )
        last = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        answer = await served.talk(many[:777], many[777:] + last)
        bodies = [part[:3] for part in answer.split(b"\r\n\r\n")[1:]]
        assert bodies[:100] == [b"%03d" % i for i in range(100)]
        assert answer.count(b"HTTP/1.1 200 OK") == 101


async def test_a_body_in_pieces_is_one_body() -> None:
    async with Served() as served:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        answer = await served.talk(
            head + b"transfer-encoding: chunked\r\n\r\n", b"2\r\nab\r\n", b"1\r\nc\r\n0\r\n\r\n"
        )
        assert answer.endswith(b"\r\n\r\nabc")
        answer = await served.talk(head + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n", b"hi")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"hi")


@pytest.mark.parametrize("framing", [b"content-length: 100", b"transfer-encoding: chunked"])
async def test_too_long_a_body_is_413_and_the_connection_stays(framing: bytes) -> None:
    async with Served(body_bytes=50) as served:
        body = b"x" * 100 if b"length" in framing else b"64\r\n" + b"x" * 100 + b"\r\n0\r\n\r\n"
        post = b"POST / HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\n" + body
        answer = await served.talk(post, b"GET /after HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"HTTP/1.1 200 OK" in answer


async def test_a_body_that_does_not_come_is_408() -> None:
    async with Served(body_s=0.2) as served:
        answer = await served.talk(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


async def test_an_idle_connection_is_closed() -> None:
    async with Served(idle_s=0.1) as served:
        answer = await served.talk(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert not served.server.connections


async def test_who_hangs_up_is_noticed_at_every_stage() -> None:
    async with Served() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab")
        await asyncio.sleep(0.05)
        writer.close()
        served.application.go.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(10):
            while served.server.serving or served.server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert served.application.lost_ones == 1
        assert [exchange.gone for exchange in served.application.seen] == [True]


async def test_an_application_that_breaks_leaves_no_answer_that_looks_whole() -> None:
    async with Served() as served:
        assert await served.talk(b"GET /break HTTP/1.1\r\nhost: x\r\n\r\n") == b""
        assert b"200" in await served.talk(b"GET / HTTP/1.0\r\n\r\n")


async def test_at_its_end_it_finishes_what_runs_and_takes_no_more() -> None:
    async with Served() as served:
        served.application.go.clear()
        talking = asyncio.create_task(served.talk(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))
        idle = asyncio.create_task(served.talk(b""))
        async with asyncio.timeout(10):
            while not served.server.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        served.server.stop()
        assert await idle == b""
        with pytest.raises(ConnectionError):
            await served.talk(b"")
        served.application.go.set()
        answer = await talking
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer
