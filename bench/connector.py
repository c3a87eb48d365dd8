"""What the KV connector adds to vLLM's own: per transfer and per engine step, and on real engines on and off.

`python -m bench.connector` times the connector's own code. With `--engines` it also starts a prefill and a
decode engine twice, with tracing and without, drives the same turns through both, and prints NIXL's transfer
time and the inter-token latency of each run.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from workers.connector.fingerprint import mark
from workers.connector.reporter import Reporter
from workers.connector.spans import Puller, emit_span
from workers.connector.transfers import Origin, Transfer, TransferBook

PARAMS = {"ppd_request_id": "r" * 32, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "ppd_worker_id": "p0-1"}
PULLER = Puller("d0-1", "engine-d", 0, "UCX")


def _us(action: Callable[[], object], repeat: int = 7, times: int = 2000) -> tuple[float, float]:
    """Median and spread (max - min) of `repeat` runs, in µs per call."""
    runs = []
    for _ in range(repeat):
        began_s = time.perf_counter()
        for _ in range(times):
            action()
        runs.append((time.perf_counter() - began_s) / times * 1e6)
    return statistics.median(runs), max(runs) - min(runs)


def own_code() -> dict[str, tuple[float, float]]:
    """µs of each piece of the connector's own code, by the thread on which it runs."""
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(PULLER, None, Path(folder))
        book = TransferBook(reporter.put)
        handle = iter(range(10**9))

        def transfer() -> None:
            request_id = str(number := next(handle))
            book.begin(request_id, Transfer(Origin.of(PARAMS, 2), "engine-p", 5))
            begun = book.posting(request_id)
            if begun is not None:
                begun.post_s = time.perf_counter() - begun.posted_s
                book.reading(number, begun)
            book.measured(number, 1_000_000, 60, 0.001)
            book.end(request_id)

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        tracer, done = provider.get_tracer("bench"), Transfer(Origin.of(PARAMS, 2), "engine-p", 5)
        empty: set[str] = set()

        def step() -> None:
            for request_id in empty:
                book.end(request_id)
            if book:
                book.check_overdue()

        tokens = list(range(4096))
        rows = {
            "a transfer, on the engine's thread": _us(transfer),
            "a transfer's span, on the reporter's thread": _us(lambda: emit_span(tracer, PULLER, done)),
            "an engine step without a transfer": _us(step, times=200_000),
            "the marks of a 4,096-token prompt, once a request": _us(lambda: mark(tokens, 4096), times=200),
        }
        reporter.close()
    return rows


async def on_engines(turns: int, traced: bool, folder: Path) -> dict[str, float]:
    """Mean NIXL transfer and post time and inter-token latency, in ms, over `turns` turns, one at a time."""
    from tests.support.kv_engines import Client, metric, pair
    from tests.support.otlp import OtlpSink

    def read(url: str, family: str) -> tuple[float, float]:
        return metric(url, f"{family}_sum"), metric(url, f"{family}_count")

    sink = OtlpSink()
    options = ["--otlp-endpoint", sink.endpoint] if traced else []
    names = {
        "transfer_ms": "vllm:nixl_xfer_time_seconds",
        "post_ms": "vllm:nixl_post_time_seconds",
        "itl_ms": "vllm:inter_token_latency_seconds",
    }
    try:
        with pair(folder, *options) as engines:
            await engines.wait({"p0", "d0"})
            client = Client(engines)
            for number in range(turns + 5):
                if number == 5:  # the first few pay for handshake and warm-up
                    before = {name: read(engines.d.url, family) for name, family in names.items()}
                text = f"{number}: " + "tell me of it. " * 100
                await client.turn([{"role": "user", "content": text}], max_tokens=32)
            found = {}
            for name, family in names.items():
                (sum_s, count), (sum_before_s, count_before) = read(engines.d.url, family), before[name]
                found[name] = (sum_s - sum_before_s) / (count - count_before) * 1e3
            await client.close()
            return found | {"spans": len(sink.spans("kv.transfer"))}
    finally:
        sink.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", action="store_true", help="also on real engines")
    parser.add_argument("--turns", type=int, default=60, help="turns in each run on engines")
    parser.add_argument("--repeat", type=int, default=2, help="how often each run is made, in turn")
    arguments = parser.parse_args()
    own = own_code()
    for what, (median, spread) in own.items():
        print(f"{median:9.2f} us (spread {spread:.2f})  {what}", flush=True)
    if not arguments.engines:
        return
    for _ in range(arguments.repeat):
        for traced in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(on_engines(arguments.turns, traced, Path(folder)))
            print(f"engines, tracing {'on ' if traced else 'off'}", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
