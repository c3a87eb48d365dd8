"""Conversations from turn to turn: what a finished turn leaves behind, here and for other frontends.

A session is shared under the key that its next turn must extend. It is asked for in two cases only: a request
that has an earlier answer by its shape, of which this process knows nothing, or not the last one (another
frontend served it, or this one was restarted); and the first turn under an explicit id.
"""

import asyncio
import logging
import time

import xxhash

from controlplane.dialects.base import Request
from controlplane.engines.transfers import Transfers
from controlplane.shared.sessions import Sharing
from controlplane.turn.features import Conversation, explicit_key
from controlplane.turn.state import TurnState
from ppd.core import identity
from ppd.core.names import Outcome, Reason, Route, session_id_key, session_key
from ppd.core.predict import session_mean
from ppd.core.records import SessionRecord
from ppd.core.retention import AnswerKind
from ppd.core.sessions import Mark, Match, Session, SessionStore
from ppd.runtime import ids
from ppd.runtime.tracing import traceparent


def _new_id() -> str:
    return ids.token_hex(8)


class History:
    """Owns what happens to sessions after a turn."""

    def __init__(
        self, sessions: SessionStore, transfers: Transfers, sharing: Sharing, logger: logging.Logger
    ) -> None:
        self._sessions = sessions
        self._transfers = transfers
        self._sharing = sharing
        self._log = logger
        self._claims: dict[str, asyncio.Task[Session]] = {}

    def finish(self, turn: TurnState, now_s: float) -> None:
        """Remember which engines now hold the conversation. A turn without a token changes nothing."""
        if not turn.answered or not turn.request.messages:
            return
        session = turn.session = self._session_of(turn)
        usage = turn.usage
        features = turn.conversation.turn
        prompt = (usage and usage.prompt_tokens) or turn.prefill_prompt or features.prompt
        n_out = (usage.completion_tokens or 0) if usage else 0
        boundary = turn.request.keys[-1]
        mark = turn.answer.mark if turn.answer and turn.status == 200 else None
        kind = turn.answer.kind if turn.answer else AnswerKind.PLAIN
        after = identity.after_key(boundary, mark) if mark else None
        if turn.reason is not Reason.PREFILL_ANSWERED:
            session.decode_worker = turn.plan.decode.id
        if turn.prefill_worker is not None:
            session.prefill_worker = turn.prefill_worker.id
            session.p_known_tokens = prompt
        session.local_streak = session.local_streak + 1 if turn.path is Route.D_LOCAL else 0
        session.last_path = turn.path
        session.trace = traceparent(turn.spans.server)
        if n_out and turn.outcome is Outcome.OK:
            session.n_out_mean_tokens = session_mean(session.n_out_mean_tokens, n_out)
        self._sessions.add_mark(
            session, Mark(boundary, after, features.turn, prompt, prompt + n_out, kind), now_s
        )
        session.pullback = None
        if after is not None:
            if turn.hold:
                self._transfers.expect_hold(turn.request_id, session, after, session.decode_worker)
            self._share(session, after, turn.request.model)

    def _session_of(self, turn: TurnState) -> Session:
        """The session that this turn continues: the known one, a branch of it, or a new one."""
        match = turn.conversation.match
        if match is not None:
            if match.exact and match.session.marks and match.session.marks[-1] == match.mark:
                return match.session
            return match.session.fork(_new_id(), match.mark)
        session = turn.conversation.session
        if session is not None and not session.marks:
            return session
        return Session(_new_id(), explicit_key(turn.request) if turn.request.explicit_id else "")

    # --- with other frontends ---

    def may_know_more(self, request: Request, match: Match | None) -> bool:
        """Whether another frontend may have served a later turn of this conversation."""
        if not self._sharing.reached.is_set():
            return False
        last = next((i for i in _backwards(request) if request.messages[i].role == "assistant"), None)
        return last is not None and (match is None or match.messages < last)

    async def fetch(self, request: Request, match: Match | None) -> Match | None:
        """The session as another frontend shared it, now known here too; otherwise `match`."""
        places = identity.candidates(request.messages, request.keys)
        place = next((each for each in places if each.after is not None), None)
        if place is None or place.after is None:
            return match
        record = await self._sharing.get(session_key(place.after))
        if record is None:
            return match
        known = match.session if match and match.session.id == record.session_id else None
        session = known or Session(record.session_id, record.explicit_id)
        now_s = asyncio.get_running_loop().time()
        self._sessions.add_mark(session, _take_over(session, record), now_s)
        session.shared = place.after
        session.last_s = now_s - max(0.0, time.time() - record.last_unix_s)
        return Match(session, session.marks[-1], True, place.messages)

    async def settled(self, match: Match) -> None:
        """Wait, for a bounded time, for D's report whether it holds the history's KV for a pull-back."""
        if match.exact:
            await self._transfers.until_held(match.session)

    def must_claim(self, request: Request, conversation: Conversation) -> bool:
        """Whether this is a first turn under an explicit id, as far as this frontend knows."""
        return bool(request.explicit_id) and conversation.session is None

    async def claim(self, request: Request, decode_worker: str) -> Session:
        """The session of an explicit id. The first frontend to ask decides which D has it; turns that come
        while the first one is being served, at any frontend, get the same D.
        """
        key = explicit_key(request)
        task = self._claims.get(key)
        if task is None:
            task = self._claims[key] = asyncio.create_task(self._agree(key, request.model, decode_worker))
            task.add_done_callback(lambda _: self._claims.pop(key, None))
        return await asyncio.shield(
            task
        )  # if this client hangs up, others may be waiting for the same session

    async def _agree(self, key: str, model: str, decode_worker: str) -> Session:
        session = Session(_new_id(), key)
        session.decode_worker = decode_worker
        agreed = await self._sharing.claim(_explicit_place(key), _to_record(session, model))
        session.id, session.decode_worker = agreed.session_id, agreed.decode_worker
        self._sessions.keep(session, asyncio.get_running_loop().time())
        return session

    def _share(self, session: Session, after: int, model: str) -> None:
        record = _to_record(session, model)
        self._sharing.put(session_key(after), record, session_key(session.shared) if session.shared else "")
        session.shared = after
        if session.explicit_id:
            self._sharing.put(_explicit_place(session.explicit_id), record)


def _backwards(request: Request) -> range:
    return range(len(request.messages) - 1, -1, -1)


def _explicit_place(key: str) -> str:
    return session_id_key(f"{xxhash.xxh3_64_intdigest(key.encode('utf-8', 'surrogatepass')):016x}")


def _to_record(session: Session, model: str) -> SessionRecord:
    mark = session.marks[-1] if session.marks else Mark(0, 0, 0, 0, 0)
    return SessionRecord(
        session_id=session.id,
        model=model,
        turn=mark.turn,
        boundary=f"{mark.boundary:016x}",
        after=f"{mark.after or 0:016x}",
        decode_worker=session.decode_worker,
        prefill_worker=session.prefill_worker,
        n_ctx_tokens=mark.total_tokens,
        n_prompt_tokens=mark.prompt_tokens,
        explicit_id=session.explicit_id,
        answer_kind=mark.kind,
        p_known_tokens=session.p_known_tokens,
        local_streak=session.local_streak,
        n_out_mean_tokens=session.n_out_mean_tokens,
        last_unix_s=time.time(),
        last_path=session.last_path,
        trace=session.trace,
    )


def _take_over(session: Session, record: SessionRecord) -> Mark:
    """Copy the engines and the last mark of another frontend's record into the session."""
    session.decode_worker = record.decode_worker
    session.prefill_worker = record.prefill_worker
    session.p_known_tokens = record.p_known_tokens
    session.local_streak = record.local_streak
    session.n_out_mean_tokens = record.n_out_mean_tokens
    session.last_path = record.last_path
    session.trace = record.trace
    session.pullback = None
    return Mark(
        int(record.boundary, 16),
        int(record.after, 16),
        record.turn,
        record.n_prompt_tokens,
        record.n_ctx_tokens,
        _kind(record.answer_kind),
    )


def _kind(name: str) -> AnswerKind:
    """The kind of an answer. An unknown kind, from a newer frontend, counts as plain."""
    return AnswerKind(name) if name in set(AnswerKind) else AnswerKind.PLAIN
