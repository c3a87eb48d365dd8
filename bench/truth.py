"""`ppd bench truth`: is the engine model true? Running engines are profiled, then both serve the same load.

ppd up --placement 1P1D --detach
ppd bench truth --prefill http://127.0.0.1:PORT --decode http://127.0.0.1:PORT --plot truth.png
"""

import argparse
import asyncio
import sys
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table as Grid

from bench import truth_load, truth_report
from bench.truth_engines import EngineError, Engines
from bench.truth_profile import EngineLimits, Measured, measure


class Result(msgspec.Struct, frozen=True):
    request_ms: float
    handoff_ms: float
    bytes_per_s: float
    turns: int
    groups: list[truth_report.Group]


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    try:
        measured, real, simulated = asyncio.run(_run(args, console))
    except (EngineError, aiohttp.ClientError, TimeoutError) as error:
        console.print(f"the engines cannot be measured: {error or type(error).__name__}")
        return 1
    groups = truth_report.compare(real, simulated)
    if args.plot:
        truth_report.plot(real, simulated, args.plot)
    if args.json:
        result = Result(
            1e3 * measured.request_s, 1e3 * measured.setup_s, measured.bytes_per_s, len(real), groups
        )
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    else:
        Console().print(_grid(groups))
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ppd bench truth", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--prefill", required=True, help="the prefill engine's URL")
    add("--decode", required=True, help="the decode engine's URL")
    add("--duration", type=float, default=120.0, help="seconds in which conversations begin")
    add("--rate", type=float, default=0.0, help="conversations a second; 0: what the engines can bear")
    add("--block-size", type=int, default=128, help="tokens of one KV block")
    add("--kv-capacity", type=int, default=46_592, help="tokens of KV memory, of each engine")
    add("--kv-bytes-per-token", type=int, default=23_040)
    add("--max-batch-tokens", type=int, default=2048)
    add("--max-model-len", type=int, default=4096)
    add("--plot", type=Path, help="a PNG of predicted against measured times")
    add("--json", action="store_true")
    return parser.parse_args(argv)


async def _run(
    args: argparse.Namespace, console: Console
) -> tuple[Measured, list[truth_load.LoadTurn], list[truth_load.LoadTurn]]:
    limits = EngineLimits(
        args.kv_bytes_per_token, args.kv_capacity, args.block_size, args.max_batch_tokens, args.max_model_len
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        engines = Engines(session, args.prefill, args.decode)
        measured = await measure(engines, limits, console.log)
        chats = truth_load.load(measured, args.duration, args.rate)
        total = sum(len(c.turns) for c in chats)
        console.log(f"{len(chats)} conversations, {total} turns in {args.duration:g} s")
        with console.status("serving"):
            real, honest = await truth_load.drive(engines, chats, lambda _: None)
    return measured, real, truth_load.simulate(measured, chats, honest)


def _grid(groups: list[truth_report.Group]) -> Grid:
    grid = Grid("turns", "what", "n", "measured ms", "predicted ms", "error", title="Medians")
    for g in groups:
        grid.add_row(
            g.turns, g.what, str(g.n), f"{g.measured_ms:.1f}", f"{g.predicted_ms:.1f}", f"{g.error:+.1%}"
        )
    return grid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
