"""Models whose next prompt does not hold what they generated, before engines with a real prefix cache."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controlplane.telemetry import metrics
from ppd.core import seeds
from ppd.core.learning.learner import Learner
from ppd.core.names import Role
from ppd.core.placement import parse_placement
from ppd.core.records import TurnRecord
from ppd.core.retention import AnswerKind
from ppd.core.table import Table
from tests.unit.controlplane.conftest import Stack, record, running
from tests.unit.controlplane.fakes import FakeEngine, Seen

pytestmark = pytest.mark.unit

BLOCK = 16
QUESTION = "word " * 40
ANSWER = [f"w{i} " for i in range(60)]
THOUGHTS = [f"hm{i} " for i in range(400)]


class FakeCachingEngine(FakeEngine):
    """A word is a token. Holds whole blocks of what it computed and generated.

    `template`: what the prompt has of an answer in the history: "all" of its words, "none" as they were
    generated (each is rendered as another one), or all but the last ("trimmed").
    """

    template = "all"

    def _tokens(self, seen: Seen) -> list[str]:
        tokens: list[str] = []
        for message in seen.body["messages"]:
            words = (message["content"] or "").split()
            if message["role"] == "assistant" and self.template == "none":
                words = [f"again-{word}" for word in words]
            elif message["role"] == "assistant" and self.template == "trimmed":
                words = words[:-1]
            opening = ["<a>"] if message["role"] == "assistant" else [f"<{message['role']}>"]
            tokens += [*opening, *words, *([] if message["role"] == "assistant" else ["</>"])]
        return [*tokens, "<a>"]

    def _usage(self, seen: Seen, n_out: int) -> dict[str, Any]:
        prompt = self._tokens(seen)
        cached = max((_common(prompt, each) for each in self.held), default=0) // BLOCK * BLOCK
        self.held.append([*prompt, *(word.strip() for word in [*self.thoughts, *self.words])][:-1])
        usage = super()._usage(seen, n_out)
        return usage | {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}

    def __init__(self, name: str, words: list[str], thoughts: list[str]) -> None:
        super().__init__(name, words=words, thoughts=thoughts)
        self.held: list[list[str]] = []

    def _whole(self, seen: Seen, words: list[str], finish: str) -> dict[str, Any]:
        answer = super()._whole(seen, words, finish)
        if finish == "stop" and self.thoughts:
            answer["choices"][0]["message"]["reasoning_content"] = "".join(self.thoughts)
            answer["usage"]["completion_tokens"] += len(self.thoughts)
        return answer


def _common(one: list[str], other: list[str]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@asynccontextmanager
async def chats(template: str, thoughts: list[str]) -> AsyncIterator[tuple[Stack, FakeCachingEngine]]:
    async with running({}) as stack:
        engine = FakeCachingEngine("d0", ANSWER, thoughts)
        engine.template = template
        stack.engines |= {"p0": await FakeEngine("p0").start(), "d0": await engine.start()}
        roles = {"p0": Role.PREFILL, "d0": Role.DECODE}
        stack.frontend.fleet.update(
            {
                f"{name}-1": record(stack.engines[name], role, name, block_size_tokens=BLOCK)
                for name, role in roles.items()
            }
        )
        yield stack, engine


async def talk(stack: Stack, turns: int, stream: bool) -> list[TurnRecord]:
    """A chat whose client sends the visible answers again; its records."""
    history: list[str] = []
    for turn in range(turns):
        history.append(f"{turn} {QUESTION}")
        async with await stack.chat(*history, stream=stream) as response:
            assert response.status == 200
            await response.read()
        history.append("".join(ANSWER))
    return list(stack.frontend.ledger.recent)[-turns:]


def count(result: str) -> float:
    metrics.exposition()
    return REGISTRY.get_sample_value("ppd_session_cache_total", {"result": result}) or 0.0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("template", "thoughts", "kind"),
    [
        ("all", [], AnswerKind.PLAIN),
        ("trimmed", [], AnswerKind.PLAIN),
        ("none", [], AnswerKind.PLAIN),
        ("all", THOUGHTS, AnswerKind.REASONING),
        ("none", THOUGHTS, AnswerKind.REASONING),
    ],
)
async def test_a_chat_that_d_holds_stays_there_and_is_not_counted_as_evicted(
    template: str, thoughts: list[str], kind: AnswerKind, stream: bool
) -> None:
    lost, held = count("lost"), count("held")
    async with chats(template, thoughts) as (stack, _):
        records = await talk(stack, 9, stream)
        table = Table(seeds.nearest(parse_placement("1P1D"), "m"))
        learner = Learner(table)
        for each in records:
            learner.observe(each, 1.0)
        assert [each.path for each in records] == ["p-d"] + ["d-local"] * 8
        assert all(each.kept for each in records[1:])
        assert (count("lost") - lost, count("held") - held) == (0, 8)
        assert all(chance == 1.0 for row in learner.learned.survival.grid() for chance in row)
        assert stack.frontend.sessions.newest(1)[0].marks[-1].kind is kind
        # After a few turns what is expected is what is there.
        for each in records[6:]:
            assert abs(each.expected_cached_tokens - each.cached_tokens_decode) <= 2 * BLOCK
            new = each.n_prompt_tokens - each.cached_tokens_decode  # type: ignore[operator]
            assert each.n_in_tokens == pytest.approx(new, abs=3 * BLOCK)


async def test_an_eviction_is_one_whatever_the_model_does_with_answers() -> None:
    for template, thoughts in (("all", []), ("none", THOUGHTS)):
        async with chats(template, thoughts) as (stack, engine):
            await talk(stack, 4, stream=True)
            history = [part for turn in range(4) for part in (f"{turn} {QUESTION}", "".join(ANSWER))]
            engine.held.clear()
            async with await stack.chat(*history, "and now?", stream=True) as response:
                await response.read()
            last = stack.frontend.ledger.recent[-1]
            assert (last.path, last.kept) == ("d-local", False)


async def test_a_client_that_rewrites_its_history_tells_nothing_of_eviction() -> None:
    async with chats("all", []) as (stack, _):
        await talk(stack, 3, stream=True)
        lost = count("lost")
        summary = "what was said before, in short"
        async with await stack.chat(summary, "".join(ANSWER), "and now?", stream=True) as response:
            await response.read()
        shortened = [f"0 {QUESTION}", "".join(ANSWER[:30]), "and now?"]
        async with await stack.chat(*shortened, stream=True) as response:
            assert response.headers["x-ppd-route"] == "d-local"
            await response.read()
        assert count("lost") == lost
