"""The supervisor: brings a stack up, keeps it up, and takes it down in order."""

import asyncio
import itertools
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from ppd.cli.stack import leftovers, plan, ports, probes
from ppd.cli.stack.keeper import Keeper, StartError, with_log
from ppd.cli.stack.process import Process, describe_end, last_lines
from ppd.cli.stack.progress import Progress
from ppd.cli.stack.spec import PlanError, Spec
from ppd.cli.stack.state import Lock, MemberState, Phase, StackState, StateFile, busy

_START_WITHIN_S = 600.0
_POLL_S = 0.25


class Stack:
    """One run of a stack, from its start to its end."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        progress: Progress,
        summary: Callable[[StackState], str],
        lock: Lock | None = None,
    ) -> None:
        """`lock`: the folder's, where it is held already."""
        self._lock = lock or Lock(folder)
        self._spec = spec
        self._folder = folder
        self._logs = folder / "logs"
        self._progress = progress
        self._summary = summary
        self._file = StateFile(folder)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._keepers: list[Keeper] = []
        self._keeping: list[asyncio.Task[None]] = []
        me = psutil.Process()
        self._state = StackState(
            stack_id=uuid.uuid4().hex,
            supervisor=MemberState(name="supervisor", pid=me.pid, started_unix_s=me.create_time()),
            endpoint=plan.endpoint(spec),
            placement=str(spec.placement),
            model=spec.model.served_name,
            namespace=spec.namespace,
            log_dir=str(self._logs),
        )

    async def run(self) -> int:
        """Start, serve until told to stop, stop. The exit status: 0, 1 if it did not start, 130 if the
        start was interrupted.

        SIGINT, SIGTERM and SIGHUP stop it in order; a second one does so without waiting for streams.
        Raises BusyError if a stack runs in this folder.
        """
        if not self._lock.take():
            raise busy(self._file.read())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        # `ppd down` finds it from here on; what a killed one has left stays known until it is cleared.
        if (old := self._file.read()) is not None:
            self._state.predecessors = [*old.predecessors, old.stack_id]
        self._write()
        try:
            return await self._run()
        finally:
            self._file.remove()
            self._lock.release()
            self._progress.close()

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _run(self) -> int:
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        status, message = 0, ""
        try:
            if not starting.done():
                status, message = 130, "ppd up: told to stop before it was up"
            elif error := starting.exception():
                if not isinstance(error, StartError | PlanError | ports.PortError):
                    raise error
                status, message = 1, f"ppd up: {error}"
            else:
                await stopping
        finally:
            starting.cancel()
            stopping.cancel()
            await asyncio.wait({starting, stopping})
            await self._take_down()
        if message:
            self._progress.say(message)
        return status

    # --- up ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        began_s = time.monotonic()
        await self._clear_old()
        ports.check(self._spec.host, self._spec.port)
        layout = plan.make(self._spec, self._folder, self._logs)
        self._state.endpoint, self._state.etcd, self._state.nats = layout.endpoint, layout.etcd, layout.nats
        self._write()
        await self._prepare_model()
        self._keepers = [
            Keeper(member, self._state.stack_id, self._logs, self._progress, self._write)
            for member in layout.members
        ]
        self._state.members = [keeper.state for keeper in self._keepers]
        is_server = [keeper.member.kind <= plan.Kind.NATS for keeper in self._keepers]
        await self._start_all(list(itertools.compress(self._keepers, is_server)))
        await self._start_all([k for k, server in zip(self._keepers, is_server, strict=True) if not server])
        await self._until_served(layout.endpoint)
        self._state.phase = Phase.READY
        self._write()
        self._progress.ready(f"up after {time.monotonic() - began_s:.0f} s\n\n{self._summary(self._state)}")

    async def _clear_old(self) -> None:
        """What a supervisor left that was killed: its processes, and etcd's data.

        etcd is begun anew each time, since all that is in it belongs to processes that are gone; tables,
        turns and sessions are in NATS and stay.
        """
        for stack_id in self._state.predecessors:
            count = await asyncio.to_thread(leftovers.sweep, stack_id, None, 10)
            if count:
                self._progress.say(f"ended {count} processes that an earlier stack left behind")
        self._state.predecessors = []
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs.mkdir(parents=True)

    async def _prepare_model(self) -> None:
        model = self._spec.model
        if model.prepared:
            return
        step, log = "model", self._logs / "model.log"
        self._progress.begin(step, f"{model.served_name} is converted for the engine (once, about 30 s)")
        argv = [sys.executable, "-m", "ppd.cli.model.convert", model.served_name]
        process = await Process.spawn(step, argv, self._state.stack_id, log)
        code = -signal.SIGTERM
        try:
            while process.running:
                self._progress.note(step, (last_lines(log, 1) or [""])[0])
                await asyncio.sleep(_POLL_S)
            code = await process.wait()
        finally:
            self._progress.end(step, code == 0)
            await process.stop(5, self._hurry)
        if code:
            raise StartError(with_log(f"the model {model.served_name} {describe_end(code)}", [log]))

    async def _start_all(self, keepers: list[Keeper]) -> None:
        """All at once; the first failure ends the start."""
        try:
            async with asyncio.TaskGroup() as group:
                for keeper in keepers:
                    group.create_task(self._start_one(keeper))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _start_one(self, keeper: Keeper) -> None:
        await keeper.start(_START_WITHIN_S)
        self._keeping.append(asyncio.create_task(keeper.keep(), name=keeper.member.name))

    async def _until_served(self, endpoint: str) -> None:
        step = "chat"
        self._progress.begin(step, "the frontend can serve the model")
        until_s = time.monotonic() + 60
        while not await probes.servable(endpoint, self._state.model):
            if time.monotonic() > until_s:
                self._progress.end(step, False)
                raise StartError(with_log("the frontend does not get ready", [self._logs / "frontend.log"]))
            self._progress.note(step, "")
            await asyncio.sleep(_POLL_S)
        self._progress.end(step, True)

    def _write(self) -> None:
        self._file.write(self._state)

    # --- down -------------------------------------------------------------------------------------

    async def _take_down(self) -> None:
        """Frontend, workers, planner, NATS, etcd; nothing with the stack's mark is left afterwards."""
        self._state.phase = Phase.STOPPING
        for task in self._keeping:
            task.cancel()
        if self._keeping:
            await asyncio.wait(self._keeping)
        step = "stop"
        self._progress.begin(step, "frontend, workers, planner, NATS and etcd have ended, in this order")
        for kind in sorted(plan.Kind, reverse=True):
            members = [keeper for keeper in self._keepers if keeper.member.kind == kind]
            self._progress.note(step, ", ".join(keeper.member.name for keeper in members))
            await asyncio.gather(*(keeper.stop(self._hurry) for keeper in members))
        for stack_id in (self._state.stack_id, *self._state.predecessors):
            await asyncio.to_thread(leftovers.sweep, stack_id)
        self._progress.end(step, True)
