"""`python -m bench.history [--chats 192] [--rounds 3] [--port 23200] [--json]`: what a long history costs.

A chat of 50 turns and about 32,000 tokens before the same instant stand-in engines as in `bench.relay`:
router on core 0, everything else on core 1. Of many chats the frontend has served the turn before; then their
turn 2, or their turn 50, is measured: the CPU of the frontend's process, as the kernel counts it in ns.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

import uvloop

from bench.relay import routers
from bench.relay.load import Client

TURNS = (2, 50)
TARGET = 1.2
CASES = (("streamed, 64 chunks, one each 10 ms", True, 10), ("not streamed", False, 0))
_QUESTION = "Please go on, and explain the next step of it in some more detail, with an example of its use. "
_QUESTION_CHARS = 1950  # with the answer, 640 tokens of four characters a turn
_WHOLE_ANSWER = "x"  # what the stand-in says where it does not stream
_CONNECTIONS = 64


def answer(chunks: int = 64) -> str:
    """What the stand-in says."""
    return "".join(f" token{i}" for i in range(chunks))


def messages(chat: int, turn: int, said: str) -> list[dict[str, str]]:
    """The history of a chat, in which each answer was `said`, up to the question of its turn."""
    chars = _QUESTION_CHARS + len(answer()) - len(said)
    question = (_QUESTION * (chars // len(_QUESTION) + 1))[:chars]
    listed = []
    for number in range(1, turn + 1):
        listed.append({"role": "user", "content": f"Chat {chat}, question {number}: {question}"})
        if number < turn:
            listed.append({"role": "assistant", "content": said.strip()})
    return listed


def request(chat: int, turn: int, stream: bool) -> bytes:
    said = answer() if stream else _WHOLE_ANSWER
    body = {"model": "m", "messages": messages(chat, turn, said), "max_tokens": 64, "stream": stream}
    data = json.dumps(body, separators=(",", ":")).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n%b" % (len(data), data)


def cpu_us(pid: int) -> float:
    """Of all threads of a process, since it began."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


async def serve(port: int, requests: list[bytes]) -> None:
    """All of them over a few connections. Raises RuntimeError where one failed."""
    loop = asyncio.get_running_loop()

    async def some(own: list[bytes]) -> None:
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        for each in own:
            if not await client.turn(each):
                raise RuntimeError("a turn failed")
        client._transport.close()

    await asyncio.gather(*(some(requests[i::_CONNECTIONS]) for i in range(_CONNECTIONS)))


def measure(port: int, pid: int, first: int, chats: int, turn: int, stream: bool) -> float:
    """Microseconds of CPU for that turn of a chat, the mean over `chats` of them."""
    numbers = range(first, first + chats)
    uvloop.run(serve(port, [request(chat, turn - 1, stream) for chat in numbers]))
    asked = [request(chat, turn, stream) for chat in numbers]
    time.sleep(0.3)  # what the turns before left to do
    before_us = cpu_us(pid)
    uvloop.run(serve(port, asked))
    return (cpu_us(pid) - before_us) / chats


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.history")
    parser.add_argument("--chats", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=23200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(routers.LOAD_CORE)})
    report = []
    for name, stream, gap_ms in (
        ("streamed, 64 chunks, one each 10 ms", True, 10),
        ("not streamed", False, 0),
    ):
        with routers.Processes() as processes:
            engine = args.port + 50
            routers.engines(processes, engine, gap_ms, 64)
            pid = routers.frontend(processes, args.port, engine)
            costs: dict[int, list[float]] = {turn: [] for turn in TURNS}
            chat = 0
            for number in range(args.rounds + 1):
                for turn in TURNS:
                    cost = measure(args.port, pid, chat, args.chats, turn, stream)
                    chat += args.chats
                    if number:  # the first round warms up
                        costs[turn].append(cost)
        few, many = (statistics.median(costs[turn]) for turn in TURNS)
        report.append(
            {
                "case": name,
                "body_bytes": [len(request(0, turn, stream)) for turn in TURNS],
                "cpu_us": {turn: [round(each, 1) for each in costs[turn]] for turn in TURNS},
                "ratio": round(many / few, 3),
                "target": TARGET,
            }
        )
    if args.json:
        print(json.dumps(report, indent=1))
        return 0
    for row in report:
        print(f"{row['case']}: bodies of {row['body_bytes']} bytes")
        for turn in TURNS:
            print(f"  turn {turn:2}: CPU {row['cpu_us'][turn]} us")  # type: ignore[index]
        print(f"  ratio {row['ratio']} (target at most {TARGET})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
