"""What the frontend's HTTP server costs alone, beside uvicorn and granian with the same answers.

    python -m bench.http_servers [--rounds 3]

Each server runs on one core and answers a chat from memory: whole, or as 64 chunks, one each 10 ms. The load
comes from another core, in alternating rounds; what is printed is the CPU time of the server's process for a
turn. uvicorn runs on httptools and uvloop; granian is measured where it is installed.
"""

import argparse
import asyncio
import importlib.util
import socket
import statistics
import sys
from typing import Any

import uvloop

from bench.relay import load
from bench.relay.routers import ROUTER_CORE, Processes, wait_http

CHUNKS, GAP_S = 64, 0.01
_HEADERS = [(b"content-type", b"application/json")]
_EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"delta":{"content":"word "}}]}\n\n'
_WHOLE = b'{"id":"c","object":"chat.completion","choices":[{"message":{"content":"' + b"word " * 64 + b'"}}]}'
CASES = (
    load.Case("whole answers", connections=16, turns=200, stream=False, gap_ms=0.0),
    load.Case(
        "64 streams, a chunk each 10 ms", connections=64, turns=8, stream=True, gap_ms=10.0, begin_ms=640.0
    ),
)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """The same answers for ASGI servers."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    if b'"stream":true' not in body:
        await send({"type": "http.response.body", "body": _WHOLE})
        return
    for _ in range(CHUNKS):
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
        await asyncio.sleep(GAP_S)
    await send({"type": "http.response.body", "body": b""})


class Answers:
    """The same answers for the frontend's server."""

    def judge(self, exchange: Any) -> None:
        return None

    async def __call__(self, exchange: Any) -> None:
        await exchange.request.whole()
        if b'"stream":true' not in exchange.request.body:
            exchange.response.send(200, _HEADERS, _WHOLE)
            return
        exchange.response.start(200, _HEADERS)
        for _ in range(CHUNKS):
            if not exchange.response.push(_EVENT):
                await exchange.drained()
            await asyncio.sleep(GAP_S)
        exchange.response.end()

    def lost(self, exchange: Any) -> None: ...


async def _serve_own(port: int) -> None:
    from controlplane.http.server import Server

    listening = socket.create_server(("127.0.0.1", port), backlog=2048)
    await Server(Answers(), 1.0).serve([listening])


def _commands(port: int) -> dict[str, list[str]]:
    found = {
        "own": ["-m", "bench.http_servers", "--serve", str(port)],
        "uvicorn": [
            *("-m", "uvicorn", "bench.http_servers:asgi", "--host", "127.0.0.1", "--port", str(port + 1)),
            *("--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "error"),
        ],
    }
    if importlib.util.find_spec("granian"):
        found["granian"] = [
            *("-m", "granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port + 2)),
            *("--workers", "1", "--loop", "uvloop", "--log-level", "error", "bench.http_servers:asgi"),
        ]
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU of the frontend's HTTP server beside others.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18100)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        uvloop.run(_serve_own(args.serve))
        return 0
    commands = _commands(args.port)
    costs: dict[tuple[str, str], list[float]] = {}
    with Processes() as processes:
        pids = {
            name: processes.start(name, ROUTER_CORE, [sys.executable, *c]) for name, c in commands.items()
        }
        ports = dict(zip(commands, range(args.port, args.port + 3), strict=False))
        for port in ports.values():
            wait_http(f"http://127.0.0.1:{port}/health")
        for number in range(args.rounds):
            for case in CASES:
                for name, port in ports.items():
                    result = load.run(port, pids[name], case)
                    if result.failed:
                        print(f"{name}: {result.failed} turns of {case.name!r} failed", file=sys.stderr)
                        return 1
                    costs.setdefault((case.name, name), []).append(result.cpu_us)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    print(f"{'case':<34}{'server':<10}{'CPU µs a turn':>14}{'min':>8}{'max':>8}{'x own':>8}")
    for (case_name, name), found in costs.items():
        own = statistics.median(costs[case_name, "own"])
        middle = statistics.median(found)
        spread = f"{min(found):>8.0f}{max(found):>8.0f}"
        print(f"{case_name:<34}{name:<10}{middle:>14.0f}{spread}{middle / own:>8.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
