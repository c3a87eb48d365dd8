"""One leg of a turn on one engine: send the request, and classify the outcome."""

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

QUEUE = "queue"  # the kind of a failure for which the engine is not to blame
_RELEASE_S = 5.0
_COUNT_S = 2.0
_MAX_RELEASES = 64
_ERROR_BYTES = 64 * 1024
# Statuses that reject the request itself; any other error status is a failure of the engine.
_CLIENTS_FAULT = frozenset({400, 413, 422, 501})
_MISSING = frozenset({404, 405})


# So many engines may die on one turn without a new token; after that the request is taken for the cause.
MAX_CRASHES = 3
_CRASHES = frozenset({"closed", "truncated", "protocol", "empty", "stream-error", "status-500"})


class EngineFailedError(Exception):
    """An engine failed its leg; another engine may succeed. `kind` is a bounded label."""

    def __init__(self, worker: Worker, kind: str, message: str) -> None:
        super().__init__(f"{worker.name}: {message}")
        self.worker = worker
        self.kind = kind
        self.crashed = kind in _CRASHES


class StreamBrokenError(Exception):
    """An engine failed after part of its stream was sent. `kind` is a bounded label."""

    def __init__(self, worker: Worker, kind: str) -> None:
        super().__init__(f"{worker.name}: {kind}")
        self.worker = worker
        self.kind = kind
        self.crashed = kind in _CRASHES


class _Count(msgspec.Struct):
    count: int


_counts = msgspec.json.Decoder(_Count)


class Engines:
    """Sends the legs of all turns, and records which engines failed."""

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
        """Send a request and return the connection once a head with status 200 has arrived; the caller
        closes it. After `first_byte_s`, `excuse` decides whether to wait longer for an engine that makes
        steps.

        Raises EngineFailedError, or ApiError where the engine rejects the request itself.
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
        """Stop using the worker for a while, and log why. An engine that is only overloaded is not blamed."""
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
            # P may just have finished: nobody knows its blocks, which would stay until their lease ends.
            self.unwanted(worker, request_id)
            raise

    async def count_tokens(self, worker: Worker, model: str, text: str) -> int | None:
        """The number of tokens of `text`; None where the engine does not answer in time."""
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
        """Ask P, where it supports that, to free the blocks of a turn that it prefilled or is prefilling."""
        if prefill.record.releases:
            self._start_release(prefill, handoff.unwanted_body(request_id))

    def release(self, decode: Worker, prefilled: Prefilled) -> None:
        """Free P's blocks, in the background, after a turn that ended before D was asked for it."""
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
