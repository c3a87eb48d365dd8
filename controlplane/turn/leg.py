"""One leg of a turn on one engine: send, and judge what comes back."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from controlplane import errors
from controlplane.dialects.base import Dialect, Generating, Prefilled
from controlplane.engines.connection import Connection, UpstreamError
from controlplane.engines.worker import Worker
from controlplane.settings import FrontendSettings
from controlplane.telemetry import metrics
from controlplane.turn import handoff
from ppd.runtime import engine_key

QUEUE = "queue"  # the kind of failure that is none of the engine's
_RELEASE_S = 5.0
_COUNT_S = 2.0
_MAX_RELEASES = 64
_ERROR_BYTES = 64 * 1024
# What an engine says of the request itself; any other refusal is the engine's own trouble.
_CLIENTS_FAULT = frozenset({400, 413, 422, 501})
_MISSING = frozenset({404, 405})


# Engines that may die on a turn without a token of its answer: the request may be why.
MAX_CRASHES = 3
_CRASHES = frozenset({"closed", "truncated", "protocol", "empty", "stream-error", "status-500"})


class EngineFailedError(Exception):
    """An engine did not do its leg, and another one may. `kind` is a bounded label."""

    def __init__(self, worker: Worker, kind: str, message: str) -> None:
        super().__init__(f"{worker.name}: {message}")
        self.worker = worker
        self.kind = kind
        self.crashed = kind in _CRASHES


class StreamBrokenError(Exception):
    """An engine failed after bytes of its stream were sent. `kind` is a bounded label."""

    def __init__(self, worker: Worker, kind: str) -> None:
        super().__init__(f"{worker.name}: {kind}")
        self.worker = worker
        self.kind = kind
        self.crashed = kind in _CRASHES


class _Count(msgspec.Struct):
    count: int


_counts = msgspec.json.Decoder(_Count)


class Engines:
    """Sends the legs of all turns, and remembers which engines just failed."""

    def __init__(self, settings: FrontendSettings, logger: logging.Logger) -> None:
        self._settings = settings
        self._log = logger
        self._releases: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def send(
        self,
        worker: Worker,
        path: bytes,
        headers: bytes,
        body: bytes,
        first_byte_s: float,
        dialect: Dialect,
        method: bytes = b"POST",
        excuse: Callable[[float], bool] | None = None,
    ) -> Connection:
        """Until the answer's head is there with status 200; the caller closes the connection. `excuse` says
        after `first_byte_s` whether to wait on for an engine that works.

        Raises EngineFailedError, or ApiError where the engine finds fault with the request.
        """
        try:
            connection = await worker.pool.request(
                method, path, headers, body, first_byte_s, self._settings.idle_s, excuse
            )
        except UpstreamError as error:
            raise self.failed(worker, error) from None
        if connection.status == 200:
            worker.served()
            return connection
        try:
            answer = await connection.read_all(_ERROR_BYTES)
        except UpstreamError:
            answer = b""
        finally:
            connection.close()
        if connection.status in _CLIENTS_FAULT or (
            connection.status in _MISSING and dialect.not_found_is_final
        ):
            raise errors.of_engine(connection.status, answer)
        worker.failed(self._loop.time())
        self._log.warning("%s answered %d: %r", worker.name, connection.status, answer[:300])
        if connection.status == 401:
            self._log.error("%s refuses the key: %s is not the engine's", worker.name, engine_key.VARIABLE)
        kind = "status-500" if connection.status == 500 else "status"
        raise EngineFailedError(worker, kind, f"answered with status {connection.status}")

    def failed(self, worker: Worker, error: UpstreamError) -> EngineFailedError:
        """Let the worker rest, and log it; one that only has too much to do is not to blame."""
        if error.kind == QUEUE:
            return EngineFailedError(worker, error.kind, str(error))
        worker.failed(self._loop.time())
        self._log.warning("%s: %s", worker.name, error)
        return EngineFailedError(worker, error.kind, str(error))

    async def prefill(
        self,
        worker: Worker,
        path: bytes,
        headers: bytes,
        body: bytes,
        request_id: str,
        dialect: Generating,
        excuse: Callable[[float], bool] | None = None,
    ) -> Prefilled:
        """The hop through P. Raises EngineFailedError or ApiError."""
        try:
            prefill_s = self._settings.prefill_s
            connection = await self.send(worker, path, headers, body, prefill_s, dialect, excuse=excuse)
            try:
                answer = await connection.read_all(self._settings.max_answer_bytes)
                return dialect.prefilled(answer)
            except UpstreamError as error:
                raise self.failed(worker, error) from None
            except msgspec.DecodeError as error:
                raise EngineFailedError(worker, "protocol", f"its answer is no such JSON: {error}") from None
            finally:
                connection.close()
        except (asyncio.CancelledError, EngineFailedError):
            # P may have finished just now: nobody knows its blocks then, and they would wait for their lease.
            self.unwanted(worker, request_id)
            raise

    async def count_tokens(self, worker: Worker, model: str, text: str) -> int | None:
        """How many tokens `text` is; None where the engine does not say, or not in time."""
        body = msgspec.json.encode({"model": model, "prompt": text, "add_special_tokens": False})
        try:
            connection = await worker.pool.post(b"/tokenize", b"", body, _COUNT_S, _COUNT_S)
            try:
                return _counts.decode(await connection.read_all(self._settings.max_answer_bytes)).count
            finally:
                connection.close()
        except (UpstreamError, msgspec.DecodeError):
            return None

    def unwanted(self, prefill: Worker, request_id: str) -> None:
        """Have P free what it prefilled, or prefills, for a turn, if it can be told so."""
        if prefill.record.releases:
            self._start_release(prefill, handoff.unwanted_body(request_id))

    def release(self, decode: Worker, prefilled: Prefilled) -> None:
        """Have P's blocks freed, in the background, after a turn that died before D was asked for it."""
        if prefilled.kv is not None:
            self._start_release(decode, handoff.release_body(prefilled.kv))

    def _start_release(self, worker: Worker, body: bytes) -> None:
        if len(self._releases) >= _MAX_RELEASES:
            metrics.RELEASED.labels("skipped").inc()
            return
        task = asyncio.create_task(self._release(worker, body))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, worker: Worker, body: bytes) -> None:
        try:
            connection = await worker.pool.post(b"/v1/chat/completions", b"", body, _RELEASE_S, _RELEASE_S)
        except UpstreamError:
            metrics.RELEASED.labels("failed").inc()
            return
        status = connection.status
        connection.abort()
        metrics.RELEASED.labels("done" if status == 404 else "failed").inc()
