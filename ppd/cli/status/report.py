"""What `ppd status` knows; `--json` prints it as it is."""

from typing import Any

import msgspec

from ppd.cli.stack.state import StackState
from ppd.core.records import WorkerLoad, WorkerRecord


class Part(msgspec.Struct, kw_only=True):
    """One component: does it answer, and what is to be said about it."""

    name: str
    ok: bool
    where: str = ""
    detail: str = ""


class WorkerStatusRow(msgspec.Struct, kw_only=True):
    record: WorkerRecord
    load: WorkerLoad | None = None  # None: no report came while this was asked


class TableVersion(msgspec.Struct, kw_only=True):
    model: str
    placement: str
    version: int
    source: str = ""
    frozen: bool = False


class Report(msgspec.Struct, kw_only=True):
    ok: bool  # every part answers and a model is servable
    parts: list[Part]
    workers: list[WorkerStatusRow] | None  # None: etcd cannot be asked
    tables: list[TableVersion] | None  # None: NATS cannot be asked
    sessions: int | None  # None: NATS cannot be asked
    planner: Any = None  # the planner's own answer to `status`
    frontend: Any = None  # the frontend's /health
    stack: StackState | None = None  # the local stack of this folder, if one runs
