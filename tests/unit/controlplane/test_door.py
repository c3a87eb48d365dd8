"""The way in and out: ids, limits on heads and connections, deadlines, CORS, TLS, the access log."""

import asyncio
import json
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.http.asgi import Asgi
from controlplane.http.context import Limits
from controlplane.http.server import Server, bind, tls_context
from controlplane.telemetry.access_log import AccessLog
from ppd.core.names import Role
from tests.unit.controlplane.conftest import P_D, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/live", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/nope", None, 404),
        ("GET", "/v1/chat/completions", None, 405),
        ("GET", "/admin/state", None, 403),
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/responses", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"model":"nope","messages":[{"role":"user"}]}', 404),
        ("POST", "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"x"}]}', 200),
        ("POST", "/tokenize", b'{"model":"m","prompt":"x"}', 200),
    ],
)
async def test_every_answer_has_its_ids(
    stack: Stack, method: str, path: str, body: bytes | None, status: int
) -> None:
    async with stack.http.request(method, stack.url + path, data=body) as response:
        assert response.status == status
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-trace-id"])
        assert response.headers["x-request-id"]
    given = {"x-request-id": "mine-1", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    async with stack.http.request(method, stack.url + path, data=body, headers=given) as response:
        assert response.headers.getall("x-trace-id") == [TRACE]
        assert response.headers.getall("x-request-id") == ["mine-1"]
    odd = {"x-request-id": "a b", "traceparent": "00-x"}
    async with stack.http.request(method, stack.url + path, data=body, headers=odd) as response:
        assert response.headers["x-request-id"] != "a b"
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-trace-id"])


async def raw(port: int, data: bytes, eof: bool = False) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if eof:
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


class Bounded:
    """A server with its own limits before an application that says 200."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server(Asgi(self._application), 1, Limits(**limits))
        self.heads = 0

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        self.heads += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def __aenter__(self) -> "Bounded":
        listener = bind("127.0.0.1", 0)
        self._task = asyncio.create_task(self.server.serve([listener]))
        await self.server.started.wait()
        self.port: int = listener.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        await self._task


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"y" * 5000,
        b"\r\n".join(b"x%d: y" % i for i in range(300)),
        b"\r\n".join(b"x: y" for _ in range(1000)),
    ],
)
async def test_too_large_a_head_is_431(head: bytes) -> None:
    async with Bounded(head_bytes=4096) as bounded:
        answer = await raw(bounded.port, b"GET / HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert bounded.heads == 0
        assert b" 200 " in await raw(bounded.port, b"GET / HTTP/1.0\r\nx: " + b"y" * 3000 + b"\r\n\r\n")


async def test_an_endless_header_is_cut_off() -> None:
    async with Bounded(head_bytes=4096) as bounded:
        reader, writer = await asyncio.open_connection("127.0.0.1", bounded.port)
        writer.write(b"GET / HTTP/1.1\r\nx: ")
        sent = 0
        async with asyncio.timeout(20):
            try:
                while sent < 64 << 20 and not reader.at_eof():
                    writer.write(b"y" * 65536)
                    sent += 65536
                    await writer.drain()
                    await asyncio.sleep(0)
            except ConnectionError:
                pass
        assert sent < 48 << 20
        writer.close()
        assert bounded.heads == 0


@pytest.mark.parametrize(
    ("begun", "told"), [(b"", b""), (b"GE", b"HTTP/1.1 408 "), (b"GET / HTTP/1.1\r\nhost", b"HTTP/1.1 408 ")]
)
async def test_who_sends_no_head_is_cut_off(begun: bytes, told: bytes) -> None:
    async with Bounded(head_s=0.2) as bounded:
        assert (await raw(bounded.port, begun))[:13] == told


async def test_beyond_the_connections_allowed_it_is_503() -> None:
    async with Bounded(connections=2) as bounded:
        held = [await asyncio.open_connection("127.0.0.1", bounded.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await raw(bounded.port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.05)
        assert b" 200 " in await raw(bounded.port, b"GET / HTTP/1.0\r\n\r\n")


async def test_any_client_understands_that_503_and_no_number_of_them_stays() -> None:
    async with Bounded(connections=16) as bounded, aiohttp.ClientSession() as http:
        held = [await asyncio.open_connection("127.0.0.1", bounded.port) for _ in range(16)]
        async with http.post(f"http://127.0.0.1:{bounded.port}/", data=b"x" * 2_000_000) as response:
            assert response.status == 503
            assert response.headers["retry-after"] == "1"
        more = [await asyncio.open_connection("127.0.0.1", bounded.port) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert len(bounded.server.connections) <= 19
        await asyncio.sleep(2.5)
        assert len(bounded.server.connections) == 16
        for _, writer in held + more:
            writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx y: z\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_400_in_the_same_shape(data: bytes) -> None:
    async with Bounded() as bounded:
        answer = await raw(bounded.port, data)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert bounded.heads == 0


async def test_a_turn_that_takes_too_long_is_504_and_stops_its_engines() -> None:
    async with running(P_D, turn_s=0.3) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        async with await stack.chat("hi") as response:
            assert response.status == 504
            assert (await response.json())["error"]["type"] == "timeout_error"
        stack.engines["d0"].faults.append(Fault("stall", after=2))
        async with await stack.chat("hi", stream=True) as response:
            text = await response.text()
            assert response.status == 200
            assert '"timeout_error"' in text
            assert "[DONE]" not in text
        stack.engines["d0"].faults.append(Fault("stall"))
        body = {"model": "m", "input": "x"}
        async with stack.http.post(stack.url + "/v1/responses", json=body) as response:
            assert response.status == 504
        async with asyncio.timeout(20):
            while not all(seen.aborted for seen in stack.engines["d0"].requests):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert stack.frontend.gate.running == 0


async def test_pages_of_named_origins_may_call(tmp_path: Path) -> None:
    ours, other = "https://ours.example", "https://other.example"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-session-id"}
    keys = tmp_path / "keys"
    keys.write_text('{"keys":[]}')
    async with running(P_D, cors_origins=[ours], keys=keys) as stack:

        async def headers(method: str, path: str, origin: str, **more: str) -> tuple[int, Any]:
            sent = {"origin": origin, **more}
            async with stack.http.request(method, stack.url + path, headers=sent) as response:
                return response.status, response.headers

        for path in ("/v1/models", "/v1/chat/completions"):
            status, told = await headers("OPTIONS", path, ours, **asked)
            assert (status, told["access-control-allow-origin"]) == (200, ours)
            assert "POST" in told["access-control-allow-methods"]
            assert "x-session-id" in told["access-control-allow-headers"]
            assert (await headers("OPTIONS", path, other, **asked))[0] == 400
        status, told = await headers("GET", "/live", ours)
        assert (status, told["access-control-allow-origin"]) == (200, ours)
        assert "x-trace-id" in told["access-control-expose-headers"]
        status, told = await headers("POST", "/v1/chat/completions", ours)
        assert (status, told["access-control-allow-origin"], told["vary"]) == (401, ours, "Origin")
        status, told = await headers("GET", "/live", other)
        assert (status, "access-control-allow-origin" in told) == (200, False)
    async with (
        running(P_D, cors_origins=["*"]) as stack,
        await stack.chat("hi", stream=True, headers={"origin": other}) as response,
    ):
        assert response.headers["access-control-allow-origin"] == "*"
    async with running(P_D) as stack, await stack.chat("hi", headers={"origin": ours}) as response:
        assert "access-control-allow-origin" not in response.headers


async def test_streams_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(  # noqa: ASYNC221
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost", "-days", "2"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    async with running({"d0": Role.DECODE}) as stack:
        tls = Server(stack.frontend, 1, tls=tls_context(str(cert), str(key)))
        listener = bind("127.0.0.1", 0)
        serving = asyncio.create_task(tls.serve([listener]))
        await tls.started.wait()
        port = listener.getsockname()[1]
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
        url = f"https://localhost:{port}/v1/chat/completions"
        trust = ssl.create_default_context(cafile=str(cert))
        async with aiohttp.ClientSession() as http, http.post(url, json=body, ssl=trust) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
        plain = await raw(port, b"GET / HTTP/1.1\r\n\r\n", eof=True)
        assert b"200" not in plain
        tls.stop()
        await serving


async def test_each_request_is_a_line_of_the_access_log(tmp_path: Path) -> None:
    file = tmp_path / "access"
    async with running(P_D, access_log=str(file)) as stack:
        async with await stack.chat("hi", headers={"x-request-id": "mine"}) as response:
            trace_id = response.headers["x-trace-id"]
            await response.read()
        async with stack.http.get(stack.url + "/nope%0aforged?secret=1") as response:
            await response.read()
        stack.engines["p0"].faults.append(Fault("stall"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await stack.chat("hi")
        log = stack.frontend._access_log
        assert log is not None
        async with asyncio.timeout(20):
            while len(log._lines) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        log.flush()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [
        ("/v1/chat/completions", 200),
        ("/nope\nforged", 404),
        ("/v1/chat/completions", 499),
    ]
    first = lines[0]
    assert (first["route"], first["reason"], first["client"]) == ("p-d", "first-turn", "127.0.0.1")
    assert (first["request_id"], first["trace_id"], first["method"]) == ("mine", trace_id, "POST")
    assert first["ms"] > 0


def test_the_access_log_is_bounded_and_keeps_what_it_cannot_write(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "missing" / "access"))
    for number in range(10_050):
        log.add({"n": number})
    with pytest.raises(OSError, match="missing"):
        log.flush()
    (tmp_path / "missing").mkdir()
    log.flush()
    numbers = [json.loads(line)["n"] for line in (tmp_path / "missing" / "access").read_text().splitlines()]
    assert numbers == list(range(50, 10_050))
