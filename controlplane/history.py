"""Conversations from turn to turn: what a finished turn leaves behind, and how other frontends learn of it.

A session is written behind to the NATS bucket under the key that its next turn must extend. It is read there
in one case only: a request that has an earlier answer by its shape, and that this process knows nothing of
(another frontend served it, or this one was restarted). That read has a short deadline.
"""

import asyncio
import logging
import secrets
import time

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError
from nats.js.kv import KeyValue

from controlplane import metrics
from controlplane.features import explicit_key
from controlplane.parse import Request
from controlplane.state import TurnState
from controlplane.transfers import Transfers
from ppd.core import identity, names
from ppd.core.names import Path, Reason
from ppd.core.predict import session_mean
from ppd.core.records import BadRecordError, SessionRecord, decode, encode
from ppd.core.sessions import Mark, Match, Session, SessionStore
from ppd.runtime.bus import Bus, BusError

READ_S = 0.1
_MAX_PENDING = 10_000
_MAX_READS = 64  # at once; beyond them an unknown session is simply unknown
_PAUSE_S = 0.05
_BUCKET_BYTES = 1 << 30


def _new_id() -> str:
    return secrets.token_hex(8)


class History:
    """Owns what happens to sessions after a turn."""

    def __init__(
        self,
        sessions: SessionStore,
        transfers: Transfers,
        bus: Bus,
        namespace: str,
        ttl_s: float,
        logger: logging.Logger,
    ) -> None:
        self._transfers = transfers
        self._sessions = sessions
        self._bus = bus
        self._bucket = names.stream_name(names.SESSIONS_BUCKET, namespace)
        self._ttl_s = ttl_s
        self._log = logger
        self._kv: KeyValue | None = None
        self._reads = 0
        self._pending: dict[str, SessionRecord] = {}
        self._filled = asyncio.Event()

    @property
    def shared(self) -> bool:
        """The bucket was reached: sessions go to, and come from, other frontends."""
        return self._kv is not None

    @property
    def pending(self) -> int:
        """Sessions that are not written yet."""
        return len(self._pending)

    # --- in this process ---

    def reserve(self, turn: TurnState) -> None:
        """Before the first answer of a conversation with an explicit id: turns of it that come meanwhile
        find the same D."""
        turn.session = turn.conversation.session
        if turn.session is None and turn.request.explicit_id:
            session = Session(_new_id(), explicit_key(turn.request))
            session.decode_worker = turn.plan.decode.id
            self._sessions.keep(session, turn.started_s)
            turn.session = session

    def finish(self, turn: TurnState, now_s: float) -> None:
        """Remember where the conversation lives now. A turn that gave no token leaves nothing behind."""
        if not turn.placed or not turn.first_s or not turn.request.messages:
            return
        session = turn.session = self._session_of(turn)
        usage = turn.usage
        features = turn.conversation.turn
        prompt = usage.prompt_tokens if usage and usage.prompt_tokens else features.prompt
        n_out = (usage.completion_tokens or 0) if usage else 0
        boundary = turn.request.keys[-1]
        mark = turn.answer.mark if turn.answer and turn.status == 200 else None
        after = identity.after_key(boundary, mark) if mark else None
        if turn.reason is not Reason.PREFILL_ANSWERED:
            session.decode_worker = turn.plan.decode.id
        if turn.prefill_worker is not None:
            session.prefill_worker = turn.prefill_worker.id
            session.p_known_tokens = prompt
        session.local_streak = session.local_streak + 1 if turn.path is Path.D_LOCAL else 0
        session.last_path = turn.path
        if n_out:
            session.n_out_mean_tokens = session_mean(session.n_out_mean_tokens, n_out)
        self._sessions.add_mark(session, Mark(boundary, after, features.turn, prompt, prompt + n_out), now_s)
        session.pullback = None
        if after is not None:
            if turn.hold:
                self._transfers.expect_hold(turn.request_id, session, after, session.decode_worker)
            self._share(session, turn.request.model)

    def _session_of(self, turn: TurnState) -> Session:
        """The session that this turn continues, or a branch of it, or a new one."""
        match = turn.conversation.match
        if match is not None:
            if match.exact and match.session.marks and match.session.marks[-1] == match.mark:
                return match.session
            return match.session.fork(_new_id(), match.mark)
        if turn.session is not None and not turn.session.marks:
            return turn.session
        return Session(_new_id(), explicit_key(turn.request) if turn.request.explicit_id else "")

    # --- with other frontends ---

    def may_know(self, request: Request) -> bool:
        """Whether another frontend may have served this conversation."""
        return (
            self._kv is not None
            and self._bus.connected
            and self._reads < _MAX_READS
            and any(message.role == "assistant" for message in request.messages)
        )

    async def fetch(self, request: Request) -> Match | None:
        """The session from NATS, now known here too; None when it is not there, or not in time."""
        places = identity.candidates(request.messages, request.keys)
        place = next((each for each in places if each.after is not None), None)
        if place is None or self._kv is None:
            return None
        self._reads += 1
        try:
            async with asyncio.timeout(READ_S):
                entry = await self._kv.get(f"{place.after:016x}")
            record = decode(entry.value or b"", SessionRecord)
        except KeyNotFoundError:
            metrics.SESSION_READS.labels("unknown").inc()
            return None
        except (TimeoutError, NatsError, BusError, BadRecordError, OSError):
            metrics.SESSION_READS.labels("failed").inc()
            return None
        finally:
            self._reads -= 1
        metrics.SESSION_READS.labels("found").inc()
        session = _from_record(record)
        now_s = asyncio.get_running_loop().time()
        self._sessions.keep(session, now_s)
        session.last_s = now_s - max(0.0, time.time() - record.last_unix_s)
        return Match(session, session.marks[-1], True, place.messages)

    def _share(self, session: Session, model: str) -> None:
        mark = session.marks[-1]
        if len(self._pending) >= _MAX_PENDING:
            self._pending.pop(next(iter(self._pending)))
            metrics.RECORDS.labels("session-dropped").inc()
        self._pending[f"{mark.after:016x}"] = _to_record(session, model)
        self._filled.set()

    async def run(self) -> None:
        """Write behind. For a Supervisor: raises on an outage; what was not written is kept, bounded."""
        await self._bus.connect()
        self._kv = await self._bus.kv(self._bucket, history=1, ttl_s=self._ttl_s, max_bytes=_BUCKET_BYTES)
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._pending and self._bus.connected:
                key = next(iter(self._pending))
                record = self._pending.pop(key)
                # No acknowledgement is awaited: a session that is lost here costs one P->D turn.
                await self._bus.publish(f"$KV.{self._bucket}.{key}", encode(record), "session")
            await asyncio.sleep(_PAUSE_S)


def _to_record(session: Session, model: str) -> SessionRecord:
    mark = session.marks[-1]
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
        p_known_tokens=session.p_known_tokens,
        local_streak=session.local_streak,
        n_out_mean_tokens=session.n_out_mean_tokens,
        last_unix_s=time.time(),
        last_path=session.last_path,
    )


def _from_record(record: SessionRecord) -> Session:
    session = Session(record.session_id, record.explicit_id)
    session.decode_worker = record.decode_worker
    session.prefill_worker = record.prefill_worker
    session.p_known_tokens = record.p_known_tokens
    session.local_streak = record.local_streak
    session.n_out_mean_tokens = record.n_out_mean_tokens
    session.last_path = record.last_path
    session.marks = (
        Mark(
            int(record.boundary, 16),
            int(record.after, 16),
            record.turn,
            record.n_prompt_tokens,
            record.n_ctx_tokens,
        ),
    )
    return session
