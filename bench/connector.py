"""What the KV connector adds to a transfer and to a decode step, traced and not.

`python -m bench.connector` times the connector's own code, and real NIXL reads with and without it. With
`--engines` it also starts a prefill and a decode engine and drives turns through both. What is compared takes
turns in blocks, so that what else changes on the machine changes both; ratios of neighbouring blocks are
printed as median and quartiles.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from workers.connector.fingerprint import marks
from workers.connector.reporter import Reporter
from workers.connector.spans import Puller, emit_span
from workers.connector.transfers import Origin, Transfer, TransferBook

PARAMS = {"ppd_request_id": "r" * 32, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "ppd_worker_id": "p0-1"}
PULLER = Puller("d0-1", "engine-d", 0, "UCX")
TRANSFER_OFF = "a transfer, on the engine's thread, not traced"
TRANSFER_ON = "a transfer, on the engine's thread, traced"
STEP = "an engine step without a transfer"


def _us(action: Callable[[], object], repeat: int = 7, times: int = 2000) -> tuple[float, float]:
    """Median and spread (max - min) of `repeat` runs, in µs per call."""
    runs = []
    for _ in range(repeat):
        began_s = time.perf_counter()
        for _ in range(times):
            action()
        runs.append((time.perf_counter() - began_s) / times * 1e6)
    return statistics.median(runs), max(runs) - min(runs)


def _transfer(reporter: Reporter) -> Callable[[], None]:
    """One transfer's way through the connector, on the engine's thread."""
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

    return transfer


def own_code() -> dict[str, tuple[float, float]]:
    """µs of each piece of the connector's own code, by the thread on which it runs: median and spread."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    tracer, done = provider.get_tracer("bench"), Transfer(Origin.of(PARAMS, 2), "engine-p", 5)
    book, empty = TransferBook(lambda _: None), set[str]()

    def step() -> None:
        for request_id in empty:
            book.end(request_id)
        if book:
            book.check_overdue()

    tokens = list(range(4096))
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, used in ((TRANSFER_OFF, None), (TRANSFER_ON, tracer)):
            reporter = Reporter(PULLER, used, Path(folder))
            rows[name] = _us(_transfer(reporter))
            reporter.close()
    return rows | {
        "a transfer's span, on the reporter's thread": _us(lambda: emit_span(tracer, PULLER, done)),
        STEP: _us(step, times=200_000),
        "the marks of 4,096 tokens, once a request": _us(
            lambda: marks(tokens, range(32, 4097, 64)), times=200
        ),
    }


def _print_reads() -> None:
    from bench.connector_nixl import compare, size_bytes  # needs NIXL

    found = compare()
    bare = found.pop("bare")
    took_ms = statistics.median(bare) * 1e3
    print(f"{took_ms:9.2f} ms  a NIXL read of {size_bytes() / 1e6:.0f} MB in one process", flush=True)
    for name, blocks in found.items():
        low, middle, high = statistics.quantiles(
            (one / other for one, other in zip(blocks, bare, strict=True)), n=4
        )
        print(f"  x {middle:.4f} (quartiles {low:.4f} to {high:.4f})  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", action="store_true", help="also on real engines")
    parser.add_argument("--turns", type=int, default=4, help="turns in each block on engines")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks")
    arguments = parser.parse_args()
    own = own_code()
    for what, (median, spread) in own.items():
        print(f"{median:9.2f} us (spread {spread:.2f})  {what}", flush=True)
    _print_reads()
    if not arguments.engines:
        return
    from bench.connector_engines import on_engines, ratios  # of the repository, not of the installed package

    with tempfile.TemporaryDirectory() as folder:
        pairs = asyncio.run(on_engines(arguments.pairs, arguments.turns, Path(folder)))
    print(f"traced / untraced: {ratios(pairs)}")
    transfer_us = statistics.median(ms for off, _ in pairs for ms in off.transfers_ms) * 1e3
    step_us = statistics.median(off.step_ms for off, _ in pairs) * 1e3
    print(
        f"a transfer takes {transfer_us:.0f} us, a decode step {step_us:.0f} us; of that are the connector's:"
    )
    for what, of_us in ((TRANSFER_OFF, transfer_us), (TRANSFER_ON, transfer_us), (STEP, step_us)):
        print(f"{own[what][0] / of_us:9.3%}  {what}")


if __name__ == "__main__":
    main()
