"""From a request and its session to the features that the decision needs."""

import random
from typing import NamedTuple

from controlplane.dialects.base import Request
from controlplane.turn.tokens import TokenCounter
from ppd.core import identity
from ppd.core.affinity import NOWHERE, Affinity, Near
from ppd.core.decision import Turn
from ppd.core.identity import Message
from ppd.core.predict import OutputPredictor, RateWindow
from ppd.core.retention import UNKNOWN, Judged, Retention, judge
from ppd.core.sessions import Match, Session, SessionStore


class Conversation(NamedTuple):
    """What is known of the conversation that a request belongs to, and the features of this turn."""

    session: Session | None
    match: Match | None
    turn: Turn
    begins: bool  # it has no earlier answer
    n_out_mean: float = 0.0  # recent mean of this model's output tokens; 0 = not known
    near: Near = NOWHERE  # for a history that is not known: engines that may hold its beginning


# For requests that generate nothing.
NO_CONVERSATION = Conversation(None, None, Turn(turn=0, n_in=0, n_out=0, n_ctx=0, qps=0.0), False)


class FeatureReader:
    """Computes features from sessions, token counts and running means, which it owns."""

    def __init__(self, sessions: SessionStore, tokens: TokenCounter) -> None:
        self.sessions = sessions
        self.tokens = tokens
        self.affinity = Affinity()
        self.outputs = OutputPredictor()
        self.retention = Retention()
        self.arrivals = RateWindow()
        self._rng = random.Random()

    def find(self, request: Request, now_s: float) -> Match | None:
        """The known history that this request continues."""
        return self.sessions.match(identity.candidates(request.messages, request.keys), now_s)

    def read(self, request: Request, match: Match | None, now_s: float) -> Conversation:
        # Only the end of a known history is looked at.
        new = request.messages[match.messages :] if match else request.messages
        answers = [message.role for message in new].count("assistant")
        session = match.session if match else None
        if session is None and request.explicit_id:
            session = self.sessions.by_explicit_id(explicit_key(request), now_s)
        begins = match is None and not answers
        if begins:
            self.arrivals.add(now_s)
        if match is None:
            n_ctx, n_in = self._unknown(request, answers)
            turn_number, d_cached, p_cached, streak = answers + 1, 0, 0, 0
        else:
            n_ctx, n_in = self._known(request, match, new)
            turn_number = match.mark.turn + answers
            d_cached = n_ctx
            p_cached = min(match.session.p_known_tokens, n_ctx)
            streak = match.session.local_streak
        turn = Turn(
            turn=turn_number,
            n_in=max(1, n_in),
            n_out=self.outputs.predict(
                request.model, session.n_out_mean_tokens if session else 0.0, request.limit_tokens
            ),
            n_ctx=n_ctx,
            qps=self.arrivals.rate(now_s),
            d_cached=d_cached,
            p_cached=p_cached,
            local_streak=streak,
            idle_s=now_s - session.last_s if session else 0.0,
            draw=self._rng.random(),
        )
        near = self.near(request, session, now_s) if match is None else NOWHERE
        return Conversation(session, match, turn, begins, self.outputs.mean(request.model), near)

    def near(self, request: Request, session: Session | None, now_s: float) -> Near:
        """The engines that may hold the beginning of a request whose history is unknown. `session`: the last
        session under the same explicit id, whose history may differ.
        """
        key = affinity_key(request)
        if not key:
            return NOWHERE
        if session is not None and not self.affinity.knows(key):
            return Near(session.decode_worker, session.prefill_worker)
        return self.affinity.near(key, now_s)

    def placed(self, request: Request, conversation: Conversation, near: Near, now_s: float) -> None:
        """Note which engines this turn goes to."""
        if conversation.match is None and (key := affinity_key(request)):
            self.affinity.placed(key, near, bool(request.messages), now_s)

    def _known(self, request: Request, match: Match, new: list[Message]) -> tuple[int, int]:
        """Two token counts of the prompt: what the session's workers may hold, and what is new to them. A
        part of the last answer may be among the new tokens.
        """
        found = self.retention.share(request.base, match.mark.kind) if match.exact else 0.0
        held = match.held_tokens(found)
        n_in = self.tokens.count(request.base, new[match.exact :])
        if match.exact and found < 1:
            answer = self.tokens.count(request.base, new[:1])
            n_in += max(0, answer - (held - match.mark.prompt_tokens))
        return held, n_in

    def judged(self, model: str, match: Match | None, cached_tokens: int, block_tokens: int) -> Judged:
        """Whether D still held the conversation, by the cached tokens of a turn that expected it to."""
        if match is None:
            return UNKNOWN
        last = match.mark
        before = [mark for mark in match.session.marks if mark.turn < last.turn]
        earlier = [each for mark in before for each in (mark.prompt_tokens, mark.total_tokens)]
        found = judge(cached_tokens, last.prompt_tokens, match.answer_tokens, earlier, block_tokens)
        if found.share is not None and match.exact:
            self.retention.observe(model, match.mark.kind, found.share)
        return found

    def _unknown(self, request: Request, answers: int) -> tuple[int, int]:
        """Context and new tokens of a request whose history matches no session."""
        whole = self.tokens.estimate(request.base, request.size)
        if not answers:
            return 0, whole
        last = max(i for i, message in enumerate(request.messages) if message.role == "assistant")
        n_in = self.tokens.count(request.base, request.messages[last + 1 :])
        return max(0, whole - n_in), n_in


def explicit_key(request: Request) -> str:
    return f"{request.model}\n{request.explicit_id}"


def affinity_key(request: Request) -> str:
    """What requests with the same beginning share; empty where the client names nothing."""
    if request.explicit_id:
        return explicit_key(request)
    return f"{request.model}\n\n{request.cache_key}" if request.cache_key else ""
