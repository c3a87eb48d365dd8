"""Endpoints whose turns cannot be handed from P to D: they run whole on one engine, which the reason says."""

import asyncio
import logging
import re
from collections import OrderedDict

import msgspec

from controlplane.engines.upstream import Connection, UpstreamError
from controlplane.engines.worker import Reservation, Worker
from controlplane.errors import NO_WORKER, ApiError
from controlplane.http.exchange import Exchange, Headers
from controlplane.settings import FrontendSettings
from controlplane.turn import body as bodies
from controlplane.turn import stream
from controlplane.turn.ledger import Ledger
from controlplane.turn.leg import EngineFailedError, Engines
from controlplane.turn.route import Router
from controlplane.turn.state import RequestState
from controlplane.turn.whole_request import Asked
from ppd.core import identity
from ppd.core.names import H_DECODE, H_REASON, H_ROUTE, Reason, Role, Route
from ppd.core.sessions import Mark, Session, SessionStore

PATHS = frozenset({"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"})
_MAX_TRIES = 3
_MAX_RESPONSES = 65_536
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')


class WholeHandler:
    """Sends a request to the engine that served its conversation before, else to the least loaded one that
    decodes, and the answer back."""

    def __init__(
        self,
        settings: FrontendSettings,
        router: Router,
        engines: Engines,
        ledger: Ledger,
        sessions: SessionStore,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._router = router
        self._engines = engines
        self._ledger = ledger
        self._sessions = sessions
        self._log = logger
        self._loop = asyncio.get_running_loop()
        self._responses: OrderedDict[str, str] = OrderedDict()  # response id -> the worker that has it

    def read(self, state: RequestState) -> str:
        """Parse the request and return the name of its model. Raises ApiError."""
        client = state.client
        key = client.visit.key
        asked = Asked(client.body, client.path, client.headers, key.max_tokens if key else 0)
        state.asked = asked
        return asked.model

    async def serve(self, state: RequestState) -> None:
        client, asked = state.client, state.asked
        body = bodies.join(asked.fields)
        failed: frozenset[str] = frozenset()
        while len(failed) < _MAX_TRIES:
            worker = self._pick(asked, failed)
            if worker is None:
                break
            path = Route.D_LOCAL if worker.record.role is Role.DECODE else Route.REPLICA
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
                        await self._relay(client, worker, connection, told)
                    finally:
                        connection.close()
                    self._ledger.served_whole(
                        path, state.queued_s or 0.0, self._loop.time() - state.started_s
                    )
                    self._remember(asked, worker)
                    return
                except EngineFailedError:
                    failed |= {worker.id}
        raise ApiError(502 if failed else 503, "the engines failed" if failed else NO_WORKER, retry_after_s=1)

    # --- which engine ---

    def _pick(self, asked: Asked, failed: frozenset[str]) -> Worker | None:
        home = self._home(asked)
        if home is not None and home.ready and home.id not in failed:
            return home
        return self._router.least_loaded(asked.model, self._loop.time(), failed)

    def _home(self, asked: Asked) -> Worker | None:
        """The engine that has what the request goes on from."""
        worker_id = self._responses.get(asked.previous, "")
        if not worker_id:
            now_s = self._loop.time()
            match = self._sessions.match(identity.candidates(asked.messages, asked.keys), now_s)
            session = match.session if match else self._sessions.by_explicit_id(_explicit(asked), now_s)
            worker_id = session.decode_worker if session else ""
        return self._router.cluster.workers.get(worker_id)

    def _remember(self, asked: Asked, worker: Worker) -> None:
        if not asked.messages and not asked.explicit_id:
            return
        now_s = self._loop.time()
        boundary = asked.keys[-1]
        session = self._sessions.by_explicit_id(_explicit(asked), now_s) if asked.explicit_id else None
        session = session or Session(f"{boundary:016x}", _explicit(asked) if asked.explicit_id else "")
        session.decode_worker, session.last_path = worker.id, Route.D_LOCAL
        # The next turn is found by the boundary before the answer, which need not be read for that.
        self._sessions.add_mark(session, Mark(boundary, None, session.turn + 1, 0, 0), now_s)

    def _note_response(self, data: bytes, worker: Worker) -> None:
        """So that `previous_response_id` goes where the response is kept."""
        if found := _RESPONSE_ID.search(data[:4096]):
            self._responses[found[1].decode()] = worker.id
            if len(self._responses) > _MAX_RESPONSES:
                self._responses.popitem(last=False)

    # --- its answer ---

    async def _relay(
        self, client: Exchange, worker: Worker, connection: Connection, headers: Headers
    ) -> None:
        kind = dict(connection.headers).get(b"content-type", b"application/json")
        try:
            if not kind.startswith(b"text/event-stream"):
                data = await connection.read_all(self._settings.max_answer_bytes)
                clean = stream.strip_answer(data, stream.Seen(), None)
                self._note_response(data, worker)
                client.answer(200, [(b"content-type", kind), *headers], clean)
                return
            first = await connection.read()
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        except msgspec.DecodeError as error:
            raise EngineFailedError(worker, "protocol", f"its answer is no such JSON: {error}") from None
        self._note_response(first, worker)
        client.start(200, [(b"content-type", kind), *headers])
        try:
            last = await connection.pipe(first, client.push, client.drained)
        except UpstreamError as error:
            raise ApiError(502, f"the engine failed in the middle of the answer ({error.kind})") from error
        client.end(last)


def _explicit(asked: Asked) -> str:
    return f"{asked.model}\n{asked.explicit_id}" if asked.explicit_id else ""
