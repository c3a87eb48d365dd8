"""`python -m bench.chats --ours URL --peer URL --model NAME [--slo CLASS]`: the same chats through two
routers before the same engines, in alternating rounds; what a user waits for in turns 2 and later.

Chats come and think at the same times in all rounds of a number, but each round has words of its own, so that
no router profits from what the other one left in a cache. Each `--slo` is a contestant of its own.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

import aiohttp

from ppd.core import names

_WORDS = [
    "the",
    "sea",
    "wind",
    "stone",
    "river",
    "house",
    "light",
    "morning",
    "road",
    "bread",
    "letter",
    "winter",
    "garden",
    "song",
    "iron",
    "cloud",
]


@dataclass(frozen=True)
class ChatShape:
    """Of the chats of one round."""

    model: str
    chats: int
    turns: int
    rate_per_s: float  # at which chats arrive
    first_words: int
    next_words: int
    out_tokens: int
    think_s: float


@dataclass
class Round:
    """Seconds, of turns 2 and later unless said."""

    first_turn_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    local: int = 0  # turns on the path D-local, as our header says
    failed: int = 0


@dataclass
class Contestant:
    """A router, and the SLO class that its turns ask for."""

    name: str
    url: str
    slo: str = ""
    rounds: list[Round] = field(default_factory=list)


async def _turn(
    http: aiohttp.ClientSession, url: str, body: dict[str, object]
) -> tuple[str, float, float, str]:
    """The answer, its time to the first token and as a whole, and its path where the router says so."""
    began_s = time.perf_counter()
    first_s = 0.0
    answer = ""
    async with http.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        route = response.headers.get(names.H_ROUTE, "")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"])
            piece = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
            if piece and not first_s:
                first_s = time.perf_counter() - began_s
            answer += piece
    return answer, first_s, time.perf_counter() - began_s, route


async def _chat(
    http: aiohttp.ClientSession,
    url: str,
    shape: ChatShape,
    pace: random.Random,
    rng: random.Random,
    out: Round,
) -> None:
    messages: list[dict[str, str]] = []
    for number in range(shape.turns):
        words = shape.next_words if number else shape.first_words
        messages.append({"role": "user", "content": " ".join(rng.choices(_WORDS, k=words))})
        body = {
            "model": shape.model,
            "messages": messages,
            "stream": True,
            "max_tokens": shape.out_tokens,
            "min_tokens": shape.out_tokens,
            "temperature": 0,
        }
        try:
            answer, first_s, total_s, route = await _turn(http, url, body)
        except (aiohttp.ClientError, ValueError, TimeoutError):
            out.failed += 1
            return
        if number:
            out.ttft_s.append(first_s)
            out.total_s.append(total_s)
            out.local += route == names.Route.D_LOCAL
        else:
            out.first_turn_s.append(first_s)
        messages.append({"role": "assistant", "content": answer})
        await asyncio.sleep(pace.expovariate(1 / shape.think_s))


async def _round(of: Contestant, shape: ChatShape, number: int) -> Round:
    pace = random.Random(number)
    words = random.Random(f"{of.name} {number}")
    out = Round()
    timeout = aiohttp.ClientTimeout(total=300)
    headers = {names.H_SLO: of.slo} if of.slo else {}
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0), headers=headers
    ) as http:
        chats = []
        for _ in range(shape.chats):
            rngs = random.Random(pace.random()), random.Random(words.random())
            chats.append(asyncio.create_task(_chat(http, of.url, shape, *rngs, out)))
            await asyncio.sleep(pace.expovariate(shape.rate_per_s))
        await asyncio.gather(*chats)
    return out


def _figures(rounds: list[Round]) -> dict[str, object]:
    """Milliseconds; the spread is that of the rounds' means."""
    turns = sum(len(each.ttft_s) for each in rounds)
    rows: dict[str, object] = {
        "failed": sum(each.failed for each in rounds),
        "share_d_local": round(sum(each.local for each in rounds) / max(1, turns), 2),
    }
    for name in ("first_turn_s", "ttft_s", "total_s"):
        every = sorted(value for each in rounds for value in getattr(each, name))
        means = [statistics.mean(getattr(each, name)) for each in rounds if getattr(each, name)]
        rows[name.removesuffix("_s") + "_ms"] = {
            "mean": round(statistics.mean(every) * 1e3, 1),
            "p50": round(statistics.median(every) * 1e3, 1),
            "p95": round(every[int(len(every) * 0.95)] * 1e3, 1),
            "of_rounds": [round(mean * 1e3, 1) for mean in means],
        }
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.chats")
    add = parser.add_argument
    add("--ours", required=True, help="URL of the frontend")
    add("--peer", required=True, help="URL of the other router, before the same engines")
    add("--model", required=True)
    add("--chats", type=int, default=8, help="in a round")
    add("--turns", type=int, default=8, help="of a chat")
    add("--rate", type=float, default=0.5, help="chats that arrive in a second")
    add("--rounds", type=int, default=3)
    add("--slo", action="append", default=[], help="SLO class of our turns; may be given more than once")
    add("--first-words", type=int, default=200)
    add("--next-words", type=int, default=40)
    add("--out-tokens", type=int, default=24)
    add("--think-s", type=float, default=1.0)
    args = parser.parse_args()
    shape = ChatShape(
        *(args.model, args.chats, args.turns, args.rate),
        *(args.first_words, args.next_words, args.out_tokens, args.think_s),
    )
    ours = [Contestant(f"ours, {slo}" if slo else "ours", args.ours, slo) for slo in args.slo or [""]]
    peer = Contestant("peer", args.peer)
    for number in range(args.rounds):
        for each in (*ours, peer):
            each.rounds.append(asyncio.run(_round(each, shape, number)))
    report: dict[str, object] = {each.name: _figures(each.rounds) for each in (*ours, peer)}
    report["ratios_of_rounds"] = {each.name: _ratios(each.rounds, peer.rounds) for each in ours}
    print(json.dumps(report, indent=1), file=sys.stdout)
    return 0


def _ratios(ours: list[Round], peers: list[Round]) -> dict[str, list[float]]:
    return {
        name: [
            round(statistics.mean(getattr(one, name)) / statistics.mean(getattr(other, name)), 3)
            for one, other in zip(ours, peers, strict=True)
        ]
        for name in ("ttft_s", "total_s")
    }


if __name__ == "__main__":
    sys.exit(main())
