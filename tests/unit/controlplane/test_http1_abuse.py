"""What a client may do to the server on the wire: answers stay whole and in order, memory stays bounded, and
every connection ends."""

import asyncio
import resource

import pytest

from controlplane.http.exchange import Exchange
from controlplane.http.server import Server
from tests.unit.controlplane.fake_application import FakeApplication, Served

pytestmark = pytest.mark.unit

GET = b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"
BIG = b"b" * 100_000


class FakeLargeAnswers(FakeApplication):
    """Answers with much."""

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        exchange.response.send(200, [], BIG)


def answers(data: bytes) -> list[bytes]:
    """Status and body of each."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].split()[0])
        found.append(head.split()[1] + b" " + data[:length])
        data = data[length:]
    return found


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def gone(server: Server) -> None:
    async with asyncio.timeout(10):
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("garbage", [b"GARBAGE\r\n\r\n", POST + b"content-length: x\r\n\r\n", GET % b"\xff"])
async def test_garbage_is_refused_after_the_answers_to_what_came_before_it(garbage: bytes) -> None:
    async with Served() as served:
        data = await served.talk(POST + b"content-length: 2\r\n\r\nok" + GET % b"" + garbage + GET % b"")
        told = answers(data)
        assert told[:2] == [b"200 ok", b"200 "]
        assert [each[:3] for each in told[2:]] == [b"400"]
        data = await served.talk(GET % b"stream" + garbage)
        assert data.partition(b"3\r\none\r\n3\r\ntwo\r\n3\r\nend\r\n0\r\n\r\n")[2].startswith(
            b"HTTP/1.1 400 "
        )


async def test_a_next_head_that_is_late_breaks_no_answer() -> None:
    async with Served(head_s=0.1) as served:
        served.application.go.clear()
        talking = asyncio.create_task(served.talk(GET % b"" + b"GET /"))
        await asyncio.sleep(1.2)
        served.application.go.set()
        assert [each[:3] for each in answers(await talking)] == [b"200", b"408"]


async def test_requests_that_are_not_read_yet_are_never_late() -> None:
    async with Served(head_s=0.1) as served:
        served.application.go.clear()
        talking = asyncio.create_task(served.talk(GET % b"" * 20 + b"GET /last HTTP/1.1\r\nhost"))
        await asyncio.sleep(1.2)
        served.application.go.set()
        told = answers(await talking)
        assert [each[:3] for each in told] == [b"200"] * 20 + [b"408"]


async def test_nothing_is_served_that_the_client_does_not_read() -> None:
    """Nor is such a connection kept."""
    async with Served(idle_s=0.3) as served:
        served.server.application = served.application = FakeLargeAnswers()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(GET % b"" * 200)
        await asyncio.sleep(0.5)
        assert len(served.application.seen) < 100  # the kernel takes some MB
        assert not reader.at_eof()
        await gone(served.server)
        writer.transport.abort()


async def test_who_reads_at_last_is_served_all() -> None:
    async with Served() as served:
        served.server.application = served.application = FakeLargeAnswers()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(GET % b"" * 200 + b"GARBAGE\r\n\r\n")
        await asyncio.sleep(0.2)
        assert len(served.application.seen) < 100
        data = b""
        async with asyncio.timeout(20):
            while more := await reader.read(1 << 20):
                data += more
        assert [each[:3] for each in answers(data)] == [b"200"] * 200 + [b"400"]
        writer.close()


async def test_an_answer_is_not_cut_off_while_it_is_read() -> None:
    async with Served(idle_s=1) as served:
        served.server.application = served.application = FakeLargeAnswers()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(GET % b"" * 150 + b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        data = b""
        async with asyncio.timeout(60):
            while more := await reader.read(1 << 20):
                data += more
                await asyncio.sleep(0.05)
        assert data.count(b"HTTP/1.1 200") == 151
        assert data.endswith(BIG)


async def test_a_refused_client_that_does_not_read_is_let_go() -> None:
    async with Served(idle_s=0.3) as served:
        served.server.application = served.application = FakeLargeAnswers()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(GET % b"" * 200 + b"GARBAGE\r\n\r\n")
        await gone(served.server)
        writer.transport.abort()


@pytest.mark.parametrize(
    "endless",
    [b"x: y\r\n" * 10_000, b"x: " + b"y" * 60_000 + b"\r\n"],
    ids=["many", "long"],
)
async def test_trailers_are_bounded_and_are_no_headers(endless: bytes) -> None:
    async with Served(body_bytes=100_000) as served:
        chunked = POST + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
        data = await served.talk(chunked + b"x-ppd-admin-key: k\r\n\r\n" + GET % b"" + b"GARBAGE\r\n\r\n")
        assert [each[:6] for each in answers(data)[:2]] == [b"200 ok", b"200 "]
        for seen in served.application.seen:
            assert [name for name, _ in seen.request.raw_headers if name.startswith(b"x-")] == []
        data = await served.talk(chunked, *[endless] * 12)
        assert data.startswith(b"HTTP/1.1 413 ")


async def test_so_are_chunk_extensions_and_chunks_of_next_to_nothing() -> None:
    async with Served(body_bytes=4 << 20) as served:
        chunked = POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        data = await served.talk(chunked, *[b"1;" + b"x" * 990_000 + b"\r\na\r\n"] * 12)
        assert data.startswith(b"HTTP/1.1 413 ")
        before_mib = memory_mib()
        data = await served.talk(chunked, b"2\r\nab\r\n" * 1_000_000, b"0\r\n\r\n")
        assert data.endswith(b"ab" * 1_000_000)
        assert (
            memory_mib() - before_mib < 50
        )  # in parts of two bytes it would be 60 and more on the server alone


async def test_many_tiny_requests_in_one_read_are_not_all_taken() -> None:
    async with Served() as served:
        served.application.go.clear()
        talking = asyncio.create_task(served.talk(GET % b"" * 5000))
        async with asyncio.timeout(10):
            while not served.server.serving:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        served.application.go.set()
        told = [each[:3] for each in answers(await talking)]
        assert len(told) < 600
        assert told == [b"200"] * (len(told) - 1) + [b"429"]


async def test_what_follows_a_large_body_is_not_counted_with_it() -> None:
    async with Served(head_bytes=1000) as served:
        post = POST + b"content-length: 50000\r\n\r\n" + b"x" * 50_000
        data = await served.talk(post + b"GET /next HTTP/1.1\r\nho", b"st: x\r\nconnection: close\r\n\r\n")
        assert [each[:3] for each in answers(data)] == [b"200", b"200"]


@pytest.mark.parametrize(
    "framing", [b"content-length: 2\r\n\r\nok", b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]
)
async def test_an_offer_of_another_protocol_is_not_taken(framing: bytes) -> None:
    """As Java's HTTP client makes with each connection's first request: it loses no body by that."""
    async with Served() as served:
        offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIA\r\n"
        data = await served.talk(
            POST + offer + framing + GET % b"" + POST + offer + framing, b"GARBAGE\r\n\r\n"
        )
        assert [each[:6] for each in answers(data)[:3]] == [b"200 ok", b"200 ", b"200 ok"]
        head, _, body = (POST + offer + framing).partition(b"\r\n\r\n")
        data = await served.talk(head, b"\r\n\r", b"\n" + body, b"GARBAGE\r\n\r\n")
        assert answers(data)[0] == b"200 ok"
        data = await served.talk((b"GET / HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n") * 40)
        assert [each[:3] for each in answers(data)] == [b"200"] * 16 + [b"400"]


async def test_what_follows_connect_is_nobodys_business() -> None:
    async with Served() as served:
        data = await served.talk(b"CONNECT /x HTTP/1.1\r\nhost: x\r\n\r\n" + GET % b"", GET % b"")
        assert data.count(b"HTTP/1.1") == 1
        assert b"connection: close" in data


async def test_a_refused_client_that_goes_on_sending_reads_why() -> None:
    async with Served(head_bytes=1000) as served:
        for begun in (
            b"GET / HTTP/1.1\r\nx: ",
            b"GARBAGE\r\n",
            POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        ):
            _, writer = streams = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(begun)
            for _ in range(20):
                writer.write(b"y" * 50_000)
                await asyncio.sleep(0.005)
            assert (await asyncio.wait_for(streams[0].read(), 10)).startswith(b"HTTP/1.1 4")
            writer.close()


async def test_an_old_client_gets_no_interim_answer() -> None:
    async with Served() as served:
        data = await served.talk(
            b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n", b"ok"
        )
        assert data.startswith(b"HTTP/1.1 200 ")
