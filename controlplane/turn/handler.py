"""Serves one turn: parse, identify, compute features, decide, place, relay, record."""

import asyncio
import logging
import re

from controlplane.admission.keys import is_admin
from controlplane.dialects.base import Request
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.endpoints import Target
from controlplane.engines.transfers import Transfers
from controlplane.engines.worker import Worker
from controlplane.errors import TOO_LONG, ApiError, no_such_response
from controlplane.http.exchange import Exchange
from controlplane.settings import FrontendSettings
from controlplane.telemetry import metrics
from controlplane.telemetry.counts import distribution
from controlplane.turn.conversations import History
from controlplane.turn.features import NO_CONVERSATION, Conversation, FeatureReader
from controlplane.turn.leg import MAX_CRASHES, EngineFailedError, Engines, StreamBrokenError
from controlplane.turn.legs import Legs
from controlplane.turn.route import Router, whole_on
from controlplane.turn.state import RequestState, TurnState
from controlplane.turn.stored import StoredResponses
from ppd.core import names
from ppd.core.affinity import Near
from ppd.core.names import Reason, Route
from ppd.runtime.keys import ApiKey

_FORCE = names.H_FORCE.encode()
_SLO = names.H_SLO.encode()
_SLO_CLASS = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TurnHandler:
    """Serves requests to the endpoints that engines serve."""

    def __init__(
        self,
        settings: FrontendSettings,
        router: Router,
        features: FeatureReader,
        history: History,
        engines: Engines,
        stored: StoredResponses,
        transfers: Transfers,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._router = router
        self._features = features
        self._history = history
        self._engines = engines
        self._stored = stored
        self._legs = Legs(settings, router, engines, self._stored, transfers, logger)
        self._loop = asyncio.get_running_loop()
        self._prefixes = Prefixes()

    def read(self, state: RequestState, target: Target) -> Request:
        """Parse the request. Raises ApiError."""
        client, dialect = state.client, target.endpoint.dialect
        sent = client.request
        key: ApiKey | None = client.visit.key
        caller = key.name if key is not None else ""
        request = state.request = dialect.parse(sent.body, sent.headers, self._prefixes, caller)
        if key is not None and key.max_tokens:
            dialect.hold_to(request, key.max_tokens)
        if target.response_id:
            request.previous, request.stream = target.response_id, target.stream
        state.force = self._force(client)
        state.slo = self._slo(client)
        return request

    # --- before the engines ---

    def _force(self, client: Exchange) -> Route | None:
        """The path that an operator, by the admin key, demands for one turn; ignored from anybody else."""
        wish = client.request.headers.get(_FORCE)
        if wish is None or not is_admin(client.request.headers, self._settings.admin_key):
            return None
        try:
            return Route(wish.decode("latin-1"))
        except ValueError:
            raise ApiError(400, f"{names.H_FORCE}: one of {', '.join(Route)}") from None

    def _slo(self, client: Exchange) -> str:
        """The SLO class: of the caller's key, otherwise of the header, otherwise the operator's default."""
        key: ApiKey | None = client.visit.key
        if key is not None and key.slo:
            return key.slo
        told = client.request.headers.get(_SLO)
        if not told:
            return self._settings.slo
        asked = told.decode("latin-1")
        if not _SLO_CLASS.fullmatch(asked):
            raise ApiError(400, f"{names.H_SLO}: up to 64 letters, digits, _ and -")
        return asked

    async def serve(self, state: RequestState, target: Target) -> None:
        """Identify, decide and place; then run the legs. Until the first byte is sent, a failed leg moves to
        another engine.
        """
        request = state.request
        conversation, begin_s = await self._identify(state)
        keeper = await self._keeper(state) if request.previous else None
        failed: frozenset[str] = frozenset()
        while True:
            with state.spans.route() as span:
                now_s = self._loop.time()
                plan = (
                    self._router.plan(request, conversation, state.slo, now_s, failed, state.force)
                    if keeper is None
                    else whole_on(keeper)
                )
                turn = state.turn
                if turn is None:
                    turn = state.turn = TurnState(state, target, conversation, plan, now_s)
                    near = Near(plan.decode.id, plan.prefill.id if plan.prefill else "")
                    self._features.placed(request, conversation, near, now_s)
                else:
                    turn.place(plan)
                if span.is_recording():
                    span.set_attributes(turn.route_attributes())
            if not failed:
                distribution(metrics.DECISION).observe(self._loop.time() - begin_s)
            try:
                await self._legs.run(turn, plan)
                return
            except EngineFailedError as error:
                turn.retries += 1
                metrics.RETRIES.labels("decode", error.kind).inc()
                if self._loop.time() >= state.started_s + self._settings.turn_s:
                    raise ApiError(504, TOO_LONG) from None
                failed |= {error.worker.id}
                turn.crashes += error.crashed
                if (
                    keeper is not None
                    or turn.crashes >= MAX_CRASHES
                    or not self._router.can_serve(request.model, failed, self._loop.time())
                ):
                    raise ApiError(502, "the engine that took this request failed") from None
                turn.moved = Reason.DECODE_FAILED
            except StreamBrokenError as error:
                failed |= {error.worker.id}
                if self._crashes_on(turn, error) or not await self._can_go_on(turn, failed):
                    raise ApiError(502, "the engine failed in the middle of the answer") from error
                if turn.client.response.finished:
                    return

    @staticmethod
    def _crashes_on(turn: TurnState, error: StreamBrokenError) -> bool:
        """Whether this stream keeps killing engines: each one died before it sent more text than the last."""
        sent_chars = len(turn.watch.sent.text) if turn.watch is not None else 0
        turn.crashes = 0 if sent_chars > turn.sent_chars else turn.crashes + error.crashed
        turn.sent_chars = sent_chars
        return turn.crashes >= MAX_CRASHES

    async def _identify(self, state: RequestState) -> tuple[Conversation, float]:
        """The request's conversation, and when the part of the decision began that needs no network."""
        request = state.request
        begin_s = self._loop.time()
        if not request.dialect.generates:
            return NO_CONVERSATION, begin_s
        match = self._features.find(request, begin_s)
        if self._history.may_know_more(request, match):
            match = await self._history.fetch(request, match)
            begin_s = self._loop.time()
        if match is not None and self._settings.pullback:
            await self._history.settled(match)
            begin_s = self._loop.time()
        conversation = self._features.read(request, match, begin_s)
        if conversation.session is not None:
            state.spans.follow(conversation.session.trace)
        if self._history.must_claim(request, conversation):
            conversation = await self._claim(state, conversation)
            begin_s = self._loop.time()
        return conversation, begin_s

    async def _keeper(self, state: RequestState) -> Worker:
        """The engine that stores the response which the request reads or continues. Raises ApiError (404)."""
        request, key = state.request, state.client.visit.key
        found = await self._stored.find(request.previous, key.name if key is not None else "")
        worker = self._router.cluster.workers.get(found)
        if worker is None or not worker.ready or (request.model and worker.record.model != request.base):
            param = "previous_response_id" if request.dialect.generates else "response_id"
            raise no_such_response(request.previous, param)
        return worker

    async def _claim(self, state: RequestState, conversation: Conversation) -> Conversation:
        """Agree with other frontends on the D of a conversation that begins under an explicit id."""
        request = state.request
        plan = self._router.plan(request, conversation, state.slo, self._loop.time(), force=state.force)
        session = await self._history.claim(request, plan.decode.id)
        near = self._features.near(request, session, self._loop.time())
        return conversation._replace(session=session, near=near)

    async def _can_go_on(self, turn: TurnState, failed: frozenset[str]) -> bool:
        """Whether a broken stream can be completed: only its last event was missing, or another engine can
        continue it.
        """
        watch = turn.watch
        if watch is None or not turn.asked.dialect.generates:
            return False
        dialect = turn.asked.generating
        if watch.sent.finished and (last := dialect.last_event()) is not None:
            turn.seen(watch.seen, self._loop.time())
            turn.client.response.end(last)
            return True
        if not await self._count_sent(turn, failed):
            return False
        moved = dialect.continuation(turn.asked, watch.sent)
        if moved is None:
            return False
        turn.migrate(moved)
        metrics.MIGRATIONS.inc()
        return True

    async def _count_sent(self, turn: TurnState, failed: frozenset[str]) -> bool:
        """Have an engine count the tokens that were sent, since a chunk may hold several tokens. False where
        no engine is left. An engine that does not answer is skipped: it could not continue the stream
        either.
        """
        watch, model = turn.watch, turn.asked.model
        while (engine := self._router.least_loaded(model, self._loop.time(), failed)) is not None:
            if watch is None or watch.sent.exact or not watch.sent.text:
                return True
            tokens = await self._engines.count_tokens(engine, model, watch.sent.text)
            if tokens is not None:
                watch.sent.counted(tokens)
                return True
            failed |= {engine.id}
        return False
