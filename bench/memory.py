"""`python -m bench.memory`: the frontend's memory for each conversation it remembers.

Chats of a few turns each, every history different, go through a real frontend (with real etcd and NATS) to
stand-in engines (`bench.relay`). After each step the memory of all the frontend's processes is read (PSS:
shared pages are divided by who shares them); the slope over the steps is what a conversation costs. With
`--max-sessions` below `--chats` the last steps show that the memory is bounded.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import sys
from collections.abc import Iterator

import psutil
import uvloop

from bench.relay import routers
from bench.relay.load import Client

_ANSWER = "".join(f" token{i}" for i in range(16))
_WARM_UP = 1_000  # chats: allocators, caches and connection pools fill before the first reading


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.memory")
    parser.add_argument("--chats", type=int, default=8_000, help="after a warm-up of 1,000")
    parser.add_argument("--turns", type=int, default=4, help="of each chat")
    parser.add_argument("--steps", type=int, default=8, help="readings")
    parser.add_argument("--max-sessions", type=int, default=100_000, help="the frontend's bound")
    parser.add_argument(
        "--processes", type=int, default=1, help="the frontend's; each hears of the others' chats"
    )
    parser.add_argument("--port", type=int, default=23600)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    port: int = args.port
    with routers.Processes() as processes:
        routers.engines(processes, port + 50, 0, 16)
        pid = routers.frontend(
            processes,
            port,
            port + 50,
            PPD_MAX_SESSIONS=str(args.max_sessions),
            PPD_PROCESSES=str(args.processes),
        )
        numbers = itertools.count()
        uvloop.run(_chats(port, numbers, _WARM_UP, args.turns))
        readings = [(0, _pss_bytes(pid))]
        size = args.chats // args.steps
        for step in range(1, args.steps + 1):
            uvloop.run(_chats(port, numbers, size, args.turns))
            readings.append((step * size, _pss_bytes(pid)))
            if not args.json:
                print(f"{readings[-1][0]:>8} chats  {readings[-1][1] / 1e6:7.1f} MB", flush=True)
    slope = statistics.linear_regression(*zip(*readings, strict=True)).slope
    if args.json:
        print(json.dumps({"chats": readings, "bytes_per_chat": round(slope)}))
    else:
        print(f"{slope / 1e3:.1f} kB a chat of {args.turns} turns, over all {args.processes} process(es)")
    return 0


def _pss_bytes(pid: int) -> int:
    root = psutil.Process(pid)
    return sum(each.memory_full_info().pss for each in (root, *root.children(recursive=True)))


async def _chats(port: int, numbers: Iterator[int], count: int, turns: int) -> None:
    """`count` chats, 32 at a time. Raises RuntimeError where a turn fails."""
    left = iter(range(count))

    async def one() -> None:
        _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
        for _ in left:
            chat = next(numbers)
            messages = []
            for turn in range(turns):
                text = f"Question {turn} of chat {chat}: what is the capital of the country after that?"
                messages += [{"role": "user", "content": text}]
                if not await client.turn(_request(messages)):
                    raise RuntimeError(f"turn {turn} of chat {chat} failed")
                messages += [{"role": "assistant", "content": _ANSWER}]
        client.close()

    await asyncio.gather(*(one() for _ in range(32)))


def _request(messages: list[dict[str, str]]) -> bytes:
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 16, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


if __name__ == "__main__":
    sys.exit(main())
