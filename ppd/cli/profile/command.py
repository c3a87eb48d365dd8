"""`ppd profile`: run, write table and report, publish."""

import asyncio
import random
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from planner.profile import build, client, preflight
from planner.profile.client import Frontend, MeasuredCluster
from planner.profile.figures import figures
from planner.profile.journal import Journal
from planner.profile.records import Head, ProfileError
from planner.profile.run import Options, Run
from ppd.cli import paths
from ppd.cli.profile import report
from ppd.cli.profile.progress import ProgressWatch
from ppd.cli.profile.settings import ProfileSettings
from ppd.cli.stack.probes import registered
from ppd.cli.stack.state import StateFile
from ppd.cli.table.ask import AskError, ask
from ppd.cli.table.where import read
from ppd.core.records import TableSnapshot, encode
from ppd.core.score import SLO_CLASSES
from ppd.runtime.endpoints import redacted
from ppd.runtime.etcd import Etcd

_FRONTEND = "http://127.0.0.1:8000"
_SERVES_S = 10.0


def main(argv: list[str]) -> int:
    settings = read(ProfileSettings, argv, "ppd profile")
    console = Console(soft_wrap=True)
    url = settings.frontend or _local_frontend()
    try:
        journal = _journal(settings)
        if not settings.report_only and not _measure(settings, url, journal, console):
            console.print(f"stopped after {len(journal.points)} points; the same command goes on from here")
            return 130
        snapshot = _write(settings.out, journal, console)
        if settings.publish:
            _publish(settings, url, snapshot, console)
    except (ProfileError, AskError, OSError) as error:
        print(f"ppd profile: {error}", file=sys.stderr)
        return 1
    return 0


def _local_frontend() -> str:
    local = StateFile(paths.home()).read()
    return local.endpoint if local and local.endpoint else _FRONTEND


def _journal(settings: ProfileSettings) -> Journal:
    path = settings.out / "journal.jsonl"
    if settings.fresh and not settings.report_only:
        path.unlink(missing_ok=True)
    return Journal(path)


def _measure(settings: ProfileSettings, url: str, journal: Journal, console: Console) -> bool:
    """Whether it came to its end; else Ctrl-C stopped it. Raises ProfileError."""
    try:
        asyncio.run(_run(settings, url, journal, console))
    except KeyboardInterrupt:
        return False
    return True


async def _run(settings: ProfileSettings, url: str, journal: Journal, console: Console) -> None:
    async with client.session() as http:
        frontend = Frontend(http, url, settings.admin_key)
        cluster = await frontend.cluster(settings.model)
        preflight.check(cluster)
        hardware = settings.hardware or await _hardware(settings, cluster.model)
        console.print(
            f"{cluster.model} on {cluster.placement} ({hardware}) at {redacted(url)}", highlight=False
        )
        options = Options(
            budget_s=settings.budget_s,
            cells=tuple(settings.cells),
            levels=tuple(float(level) for level in settings.levels),
            turns=settings.turns,
            least=settings.conversations,
        )
        head = Head(
            model=cluster.model,
            placement=cluster.placement,
            hardware=hardware,
            turns=settings.turns,
            started_unix_s=time.time(),
        )
        if journal.begin(head):
            console.print(f"going on with the {len(journal.points)} points in {settings.out}")
        with ProgressWatch(console) as watch:
            run = Run(frontend, cluster, journal, options, SLO_CLASSES.values(), watch, random.SystemRandom())
            await run.run()
        if run.without_pullback:
            console.print(f"pull-back was not measured: {run.without_pullback}", highlight=False)


async def _hardware(settings: ProfileSettings, model: str) -> str:
    etcd = Etcd(settings.etcd)
    try:
        workers = await registered(etcd, settings.namespace) or []
    finally:
        await etcd.close()
    names = sorted({worker.hardware for worker in workers if worker.model == model and worker.hardware})
    return " + ".join(names) or "unknown"


def _write(out: Path, journal: Journal, console: Console) -> TableSnapshot:
    """The table and the report, each in one step. Raises ProfileError or OSError."""
    head = journal.head
    if head is None:
        raise ProfileError(f"nothing was measured into {out} yet")
    found = figures(journal.points)
    snapshot = build.snapshot(head, found)
    _replace(out / "table.json", msgspec.json.format(encode(snapshot), indent=1))
    made = report.page_of(head, journal.speeds, journal.points, found, snapshot)
    _replace(out / "report.html", made.encode())
    console.print(f"{snapshot.source}: {out / 'table.json'}, {out / 'report.html'}", highlight=False)
    return snapshot


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.replace(path)


def _publish(settings: ProfileSettings, url: str, snapshot: TableSnapshot, console: Console) -> None:
    """Hand it over, and see that the frontend serves by it. Raises AskError or ProfileError."""
    answer = ask(settings, "rebuild", {"table": msgspec.to_builtins(snapshot)})
    version = int(answer["version"])
    console.print(f"published as version {version}", highlight=False)
    serves = asyncio.run(_serving(url, snapshot.model, version))
    if serves.table_version < version:
        raise ProfileError(f"the frontend at {redacted(url)} still serves by version {serves.table_version}")
    console.print(f"the frontend serves by version {serves.table_version}", highlight=False)


async def _serving(url: str, model: str, version: int) -> MeasuredCluster:
    """The cluster once its frontend has taken over `version`, or as it is when that took too long."""
    until_s = time.monotonic() + _SERVES_S
    async with client.session() as http:
        frontend = Frontend(http, url, "")
        while True:
            cluster = await frontend.cluster(model)
            if cluster.table_version >= version or time.monotonic() > until_s:
                return cluster
            await asyncio.sleep(0.2)
