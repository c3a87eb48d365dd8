"""Real engines under turns that are traced and not, in blocks by turns: see `bench.connector`."""

import asyncio
import statistics
import uuid
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.aio.msg import Msg

from ppd.core.names import SPAN_KV_TRANSFER, kv_moved_subject
from ppd.core.records import KvMoved, decode
from tests.support.kv_engines import Client, Pair, metric, pair
from tests.support.otlp import OtlpSink

_WARM_UP = 3  # turns
_REPEATS, _OUT = 8, 16  # a prompt of some 90 tokens, and what is answered: a CPU prefills 100 in a second


@dataclass
class Block:
    """Some turns, all traced or all not."""

    transfers_ms: list[float]  # each from its post to its completion, as NIXL measured it, and the posting
    step_ms: float  # mean gap between two tokens


async def _block(client: Client, engines: Pair, moved: dict[str, KvMoved], traced: bool, turns: int) -> Block:
    gaps = "vllm:inter_token_latency_seconds"
    sum_s, count = metric(engines.d.url, f"{gaps}_sum"), metric(engines.d.url, f"{gaps}_count")
    asked = []
    for _ in range(turns):
        text = f"{uuid.uuid4()}: " + "tell me of it. " * _REPEATS
        turn = await client.turn([{"role": "user", "content": text}], max_tokens=_OUT, sampled=traced)
        asked.append(turn.request_id)
    await asyncio.sleep(0.3)  # for the last report, and the engine's counters
    count = metric(engines.d.url, f"{gaps}_count") - count
    sum_s = metric(engines.d.url, f"{gaps}_sum") - sum_s
    reports = [moved[request_id] for request_id in asked if request_id in moved]
    return Block([(m.transfer_s + m.post_s) * 1e3 for m in reports], sum_s / count * 1e3)


async def on_engines(pairs: int, turns: int, folder: Path) -> list[tuple[Block, Block]]:
    """Pairs of blocks of `turns` turns each, one at a time: untraced and traced."""
    moved: dict[str, KvMoved] = {}

    async def keep(message: Msg) -> None:
        report = decode(message.data, KvMoved)
        moved[report.request_id] = report

    sink = OtlpSink()
    try:
        with pair(folder, "--otlp-endpoint", sink.endpoint) as engines:
            await engines.wait({"p0", "d0"})
            nc = await nats.connect(engines.nats.url)
            await nc.subscribe(kv_moved_subject(engines.namespace, "*"), cb=keep)
            client = Client(engines)
            await _block(client, engines, moved, True, _WARM_UP)  # pays for handshake and warm-up
            found = []
            for number in range(pairs):
                order = (False, True) if number % 2 else (True, False)
                blocks = {on: await _block(client, engines, moved, on, turns) for on in order}
                found.append((blocks[False], blocks[True]))
                print(f"pair {number + 1} of {pairs}: {ratios(found[-1:])}", flush=True)
            await client.close()
            await nc.close()
            spans = len(sink.wait_for(SPAN_KV_TRANSFER, pairs * turns + _WARM_UP))
            print(f"{spans} spans of {pairs * turns + _WARM_UP} traced transfers", flush=True)
            return found
    finally:
        sink.close()


def ratios(pairs: list[tuple[Block, Block]]) -> str:
    """Traced over untraced: of the transfers' medians, and of the decode steps."""
    transfers = [
        statistics.median(on.transfers_ms) / statistics.median(off.transfers_ms) for off, on in pairs
    ]
    steps = [on.step_ms / off.step_ms for off, on in pairs]
    return f"transfer x {_spread(transfers)}, decode step x {_spread(steps)}"


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.4f} (quartiles {low:.4f} to {high:.4f})"
