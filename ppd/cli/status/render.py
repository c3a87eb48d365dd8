"""A report for a person."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ppd.cli.status.report import Report, WorkerStatusRow


def _table(*columns: str) -> Table:
    """The last column gives way where the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1])
    return table


def _load(worker: WorkerStatusRow) -> tuple[str, ...]:
    load = worker.load
    if load is None:
        return ("-", "-", "-", "-")
    return (str(load.running), str(load.waiting), f"{load.kv_use:.0%}", str(load.queued_prefill_tokens))


def _state(worker: WorkerStatusRow) -> str:
    """As registered, and what its agent says of its engine."""
    load, status = worker.load, worker.record.status
    silent_s = max(load.silent_s, load.stuck_s) if load else 0.0
    return f"{status}, no sign of life for {silent_s:.0f} s" if silent_s >= 2 else status


def show(report: Report, console: Console) -> None:
    """Parts, workers, tables, sessions; unknown values are shown as unknown."""
    parts = _table("part", "", "where", "")
    for part in report.parts:
        mark = Text("up", style="green") if part.ok else Text("DOWN", style="bold red")
        parts.add_row(part.name, mark, part.where, part.detail)
    console.print(parts)
    console.print()
    if report.workers is None:
        console.print("workers: unknown, etcd does not answer")
    else:
        workers = _table("worker", "role", "model", "state", "running", "waiting", "KV", "prefill queue")
        for worker in report.workers:
            record = worker.record
            workers.add_row(record.worker_id, record.role, record.model, _state(worker), *_load(worker))
        console.print(workers if report.workers else "workers: none are registered")
    console.print()
    if report.tables is None:
        console.print("tables, sessions: unknown, NATS does not answer")
        return
    tables = _table("table", "placement", "version", "source")
    for table in report.tables:
        source = f"{table.source}, frozen" if table.frozen else table.source
        tables.add_row(table.model, table.placement, str(table.version), source)
    console.print(tables if report.tables else "tables: none are published")
    console.print(f"\nsessions: {report.sessions}")
