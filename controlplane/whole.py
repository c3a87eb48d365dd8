"""Endpoints whose turns cannot be handed from P to D: they run whole on one engine, which the reason says."""

import asyncio
import logging
import secrets
from typing import Any

import msgspec

from controlplane import body as bodies
from controlplane import stream
from controlplane.client import Client, Headers
from controlplane.cluster import Reservation, Worker
from controlplane.engines import EngineFailedError, Engines
from controlplane.errors import NO_WORKER, ApiError
from controlplane.ledger import Ledger
from controlplane.parse import INTERNAL_FIELDS
from controlplane.route import Router
from controlplane.settings import FrontendSettings
from controlplane.upstream import Connection, UpstreamError
from ppd.core.names import H_DECODE, H_REASON, H_REQUEST_ID, H_ROUTE, Path, Reason, Role

PATHS = frozenset({"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"})
_MAX_TRIES = 3


class WholeHandler:
    """Sends a request as it is to the least loaded engine that decodes, and its answer back."""

    def __init__(
        self,
        settings: FrontendSettings,
        router: Router,
        engines: Engines,
        ledger: Ledger,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._router = router
        self._engines = engines
        self._ledger = ledger
        self._log = logger

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = Client(scope, receive, send)
        headers: Headers = [(H_REQUEST_ID.encode(), secrets.token_hex(12).encode())]
        try:
            model, body = _read(await client.read_body(self._settings.max_body_bytes, self._settings.body_s))
            self._router.cluster.check(model)
            client.watch()
            await self._serve(client, model, body, headers)
        except ApiError as error:
            self._ledger.refused(error.status)
            await client.fail(error, headers)
        except asyncio.CancelledError:
            if not client.gone:
                raise
        finally:
            client.unwatch()

    async def _serve(self, client: Client, model: str, body: bytes, headers: Headers) -> None:
        failed: frozenset[str] = frozenset()
        while len(failed) < _MAX_TRIES:
            worker = self._router.least_loaded(model, asyncio.get_running_loop().time(), failed)
            if worker is None:
                break
            path = Path.REPLICA if worker.record.role is Role.REPLICA else Path.D_LOCAL
            told = [
                (H_ROUTE.encode(), path.value.encode()),
                (H_REASON.encode(), Reason.ONE_ENGINE.value.encode()),
                (H_DECODE.encode(), worker.name.encode()),
            ]
            with Reservation(worker, 0):
                try:
                    connection = await self._engines.send(
                        worker, client.path.encode(), b"", body, self._settings.first_byte_s
                    )
                    try:
                        await self._relay(client, worker, connection, [*headers, *told])
                    finally:
                        connection.close()
                    return
                except EngineFailedError:
                    failed |= {worker.id}
        raise ApiError(502 if failed else 503, "the engines failed" if failed else NO_WORKER, retry_after_s=1)

    async def _relay(self, client: Client, worker: Worker, connection: Connection, headers: Headers) -> None:
        kind = dict(connection.headers).get(b"content-type", b"application/json")
        try:
            if not kind.startswith(b"text/event-stream"):
                data = await connection.read_all(self._settings.max_answer_bytes)
                clean = stream.strip_answer(data, stream.Seen(), None)
                await client.answer(200, [(b"content-type", kind), *headers], clean)
                return
            first = await connection.read()
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        except msgspec.DecodeError as error:
            raise EngineFailedError(worker, "protocol", f"its answer is no such JSON: {error}") from None
        await client.start(200, [(b"content-type", kind), *headers])
        try:
            await connection.pipe(first, client.push, client.drained)
        except UpstreamError as error:
            raise ApiError(502, f"the engine failed in the middle of the answer ({error.kind})") from error
        await client.end()


def _read(data: bytes) -> tuple[str, bytes]:
    """The model, and the body without the fields that are none of a client's business. Raises ApiError."""
    try:
        fields = bodies.split(data)
        model = msgspec.json.decode(fields["model"], type=str)
    except KeyError:
        raise ApiError(400, "you must provide a model parameter", param="model") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ApiError(400, f"the body is no such request: {error}") from None
    for name in INTERNAL_FIELDS:
        fields.pop(name, None)
    return model, bodies.join(fields)
