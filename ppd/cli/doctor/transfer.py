"""A KV transfer as two engines make it: NIXL over UCX, between processes, with the devices of a placement."""

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ppd.cli.doctor.findings import Finding, failed, not_applicable, ok, warn
from ppd.cli.doctor.gpu import Look
from ppd.cli.doctor.wanted import Requirements
from ppd.cli.stack.plan import worker_names
from ppd.core.names import Role
from ppd.runtime import cuda, programs

TRANSFER_S = 240.0
_HOST_BYTES = 64 << 20
_DEVICE_BYTES = 256 << 20
_LINE_BYTES = 1 << 22


class Side(NamedTuple):
    """An engine's side of a transfer; on a GPU with the first of its devices."""

    name: str
    device: str  # empty: host memory


class Read(NamedTuple):
    source: Side
    target: Side
    gb_per_s: float = 0.0
    route: str = ""  # UCX's transports for the reads, such as `cuda_ipc/cuda`; empty: not told
    error: str = ""


class TransferError(Exception):
    """A side could not be started or ended too early; the message says what it reported."""


class _Process:
    """One side as a process; ended with the context."""

    def __init__(self, side: Side, size_bytes: int, folder: Path) -> None:
        self.side = side
        self._asked = json.dumps({"name": side.name, "size_bytes": size_bytes, "cuda": bool(side.device)})
        self._folder = folder
        self.log = folder / f"{side.name}.ucx"

    async def __aenter__(self) -> "_Process":
        # UCX tells which transports it takes for which operation, and nowhere but in its log.
        env = os.environ | {"UCX_LOG_FILE": str(self.log), "UCX_LOG_LEVEL": "info", "UCX_PROTO_INFO": "y"}
        if self.side.device:
            env["CUDA_VISIBLE_DEVICES"] = self.side.device
        with (self._folder / f"{self.side.name}.err").open("wb") as err:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ppd.cli.doctor.transfer_agent", self._asked),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=err,
                env=env,
                start_new_session=True,
                limit=_LINE_BYTES,
            )
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin, self._process.stdout
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        programs.kill_group(self._process)
        await self._process.wait()

    async def line(self) -> dict[str, Any]:
        """The next line that it prints. Raises TransferError if it ends instead."""
        text = await self._out.readline()
        if text:
            return dict(json.loads(text))
        causes = (_last_line(self._folder / f"{self.side.name}.err"), _last_line(self.log, "UCX  ERROR"))
        raise TransferError(
            f"{self.side.name} ended: {', '.join(filter(None, causes)) or 'it wrote nothing'}"
        )

    def tell(self, words: object) -> None:
        self._in.write(json.dumps(words).encode() + b"\n")


def _last_line(log: Path, containing: str = "") -> str:
    """The part after the marker where one is named; empty if there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found = next((line for line in reversed(lines) if line.strip() and containing in line), "")
    return found.rpartition(containing)[2].strip() if containing else found.strip()


async def measure(pairs: list[tuple[Side, Side]], size_bytes: int) -> list[Read]:
    """Have each pair's target read from its source, one after the other. Raises TransferError."""
    sides = list(dict.fromkeys(side for pair in pairs for side in pair))
    with tempfile.TemporaryDirectory(prefix="ppd-doctor-") as folder:
        async with AsyncExitStack() as stack:
            processes = {
                side: await stack.enter_async_context(_Process(side, size_bytes, Path(folder)))
                for side in sides
            }
            offers = dict(
                zip(sides, await asyncio.gather(*(p.line() for p in processes.values())), strict=True)
            )
            reads = []
            for target in dict.fromkeys(target for _, target in pairs):
                sources = [source for source, other in pairs if other == target]
                processes[target].tell({source.name: offers[source] for source in sources})
                results = await processes[target].line()
                route = route_of(processes[target].log)
                reads += [_read(source, target, results[source.name], route) for source in sources]
            return reads


def _read(source: Side, target: Side, result: dict[str, Any], route: str) -> Read:
    return Read(source, target, float(result.get("gb_per_s", 0)), route, str(result.get("error", "")))


def route_of(log: Path) -> str:
    """The transports of large reads between processes, from UCX's log; empty where it names none.

    UCX logs a table per operation and peer: a title, and the transports by range of message sizes.
    """
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    route, peer, reads = "", "", False
    for line in text.splitlines():
        _, bar, row = line.partition("] ")[2].partition("| ")
        if not bar:
            continue
        row = row.rstrip(" |")
        if "cfg#" in row:
            peer, reads = row, False
        if "ucp_get" in row:
            reads = "self" not in peer.split()
        elif reads and (found := re.match(r"\d+\.\.inf +\| [^|]*\| *(.+)", row)):
            route = found[1].strip()
    return route


def pairs_of(wanted: Requirements, seen: int) -> list[tuple[Side, Side]]:
    """From each prefill engine to each decode engine; on the CPU one pair shows what all would.

    `seen`: how many devices there are.
    """
    roles = wanted.placement.roles()
    devices = [own for _, own in wanted.engine_devices(seen)] if wanted.cuda else [()] * len(roles)
    sides = [
        (role, Side(name, own[0] if own else ""))
        for role, name, own in zip(roles, worker_names(roles), devices, strict=True)
    ]
    pairs = [(p, d) for a, p in sides if a is Role.PREFILL for b, d in sides if b is Role.DECODE]
    return pairs if wanted.cuda else pairs[:1]


Measure = Callable[[list[tuple[Side, Side]], int], Awaitable[list[Read]]]


async def transfer(wanted: Requirements, measure: Measure = measure, look: Look = cuda.look) -> Finding:
    if wanted.engine == "sim":
        return not_applicable("simulated engines move no KV")
    seen = len((await look(",".join(wanted.gpus))).devices) if wanted.cuda else 0
    pairs = pairs_of(wanted, seen)
    if not pairs:
        return not_applicable(f"{wanted.placement}: replicas exchange no KV")
    try:
        reads = await measure(pairs, _DEVICE_BYTES if wanted.cuda else _HOST_BYTES)
    except TransferError as error:
        return failed(
            str(error), "UCX_LOG_LEVEL=debug tells more; UCX_TLS must allow a transport between the two"
        )
    details = {"reads": [_as_json(read) for read in reads]}
    if broken := [read for read in reads if read.error]:
        read = broken[0]
        return failed(
            f"{read.source.name} to {read.target.name}: {read.error}",
            "unset UCX_TLS and UCX_NET_DEVICES, then allow transports one by one",
            **details,
        )
    slowest = min(reads, key=lambda read: read.gb_per_s)
    memory = "VRAM" if wanted.cuda else "DRAM"
    text = f"{slowest.gb_per_s:.1f} GB/s {memory} to {memory} over {slowest.route or 'an unnamed transport'}"
    if len(reads) > 1:
        text += f" ({slowest.source.name} to {slowest.target.name}, the slowest of {len(reads)} pairs)"
    if wanted.cuda and (indirect := [read for read in reads if "cuda_ipc" not in read.route]):
        return warn(
            f"{text}; {len(indirect)} of {len(reads)} pairs bypass NVLink and PCIe peer-to-peer (cuda_ipc)",
            "see `nvidia-smi topo -p2p r`; containers need `ipc: host`, `pid: host` and all GPUs; UCX_TLS"
            " must allow cuda_ipc",
            **details,
        )
    return ok(f"{text}, content verified", **details)


def _as_json(read: Read) -> dict[str, Any]:
    return {
        "source": read.source._asdict(),
        "target": read.target._asdict(),
        "gb_per_s": round(read.gb_per_s, 3),
        "route": read.route,
        "error": read.error,
    }
