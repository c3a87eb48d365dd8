"""Chats over real engines, with the openai SDK and with `ppd chat`."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import nats
import openai
import pytest

from ppd.core.names import TURNS_STREAM
from ppd.core.records import TurnRecord, decode
from tests.e2e.local_stack import ADMIN_KEY, LocalStack, eventually
from tests.support.questions import CHAT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MODEL = "smollm2"
QUESTIONS = list(CHAT)


class Chat:
    """A conversation; each turn's headers and usage are kept. Engines share no cached KV between salts."""

    def __init__(self, url: str, start: str = "", salt: str = "") -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.options: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
        if salt:
            self.options["extra_body"] = {"cache_salt": salt}
        self.messages: list[Any] = [{"role": "system", "content": start}] if start else []
        self.routes: list[str] = []
        self.request_ids: list[str] = []
        self.usages: list[Any] = []

    def say(self, text: str, **options: Any) -> str:
        self.messages.append({"role": "user", "content": text})
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=self.messages, **{**self.options, **options}
        )
        answer = raw.parse()
        content = answer.choices[0].message.content or ""
        self.routes.append(raw.headers["x-ppd-route"])
        self.request_ids.append(raw.headers["x-request-id"])
        self.usages.append(answer.usage)
        self.messages.append({"role": "assistant", "content": content})
        return content

    def stream(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        chunks = self.client.chat.completions.create(
            model=MODEL, messages=self.messages, stream=True, **self.options
        )
        content = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.messages.append({"role": "assistant", "content": content})
        return content


def _cached(usage: Any) -> int:
    return (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0


def _unlike_any_other() -> str:
    """A system prompt that no earlier chat began with, so that nothing of it is cached anywhere."""
    return f"You are helpful assistant number {uuid.uuid4().int}."


def _records(stack: LocalStack, request_ids: list[str]) -> dict[str, TurnRecord]:
    """The turns' records in JetStream, by request id; waits until all are there."""

    async def read() -> dict[str, TurnRecord]:
        client = await nats.connect(stack.state()["nats"])
        try:
            js = client.jetstream()
            info = await js.stream_info(TURNS_STREAM)
            found = {}
            for seq in range(info.state.first_seq, info.state.last_seq + 1):
                message = await js.get_msg(TURNS_STREAM, seq)
                record = decode(message.data or b"", TurnRecord)
                found[record.request_id] = record
            return found
        finally:
            await client.close()

    def all_of_them() -> dict[str, TurnRecord] | None:
        found = asyncio.run(read())
        return found if set(request_ids) <= found.keys() else None

    return eventually(all_of_them, within_s=20)


def test_three_turns_start_at_p_and_stay_at_d(real_stack: LocalStack) -> None:
    chat = Chat(real_stack.url)
    answers = [chat.say(question) for question in QUESTIONS]
    assert answers == list(CHAT.values())
    assert chat.routes[0] == "p-d"
    local = [
        _cached(usage) for route, usage in zip(chat.routes, chat.usages, strict=True) if route == "d-local"
    ]
    assert local
    assert all(cached > 0 for cached in local)


def test_chats_that_begin_alike_are_not_one_session(real_stack: LocalStack) -> None:
    start = _unlike_any_other()
    twins = [Chat(real_stack.url, start), Chat(real_stack.url, start)]
    for twin in twins:
        twin.say("Tell me about bridges.", temperature=1, seed=twins.index(twin))
    for twin in twins:
        twin.say(f"Make it shorter, please, reader {twins.index(twin)}.")
    records = _records(real_stack, [twin.request_ids[1] for twin in twins])
    seconds = [records[twin.request_ids[1]] for twin in twins]
    assert [record.turn for record in seconds] == [2, 2]
    assert seconds[0].session_id != seconds[1].session_id


def test_a_stream_says_what_a_whole_answer_says(real_stack: LocalStack) -> None:
    salt = uuid.uuid4().hex
    whole, streamed = Chat(real_stack.url, salt=salt), Chat(real_stack.url, salt=salt)
    for question, answer in CHAT.items():
        assert streamed.stream(question) == whole.say(question) == answer


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory, real_stack: LocalStack) -> Iterator[LocalStack]:
    stack = LocalStack(tmp_path_factory.mktemp("replica"))
    up = stack.up("--placement", "1R")
    assert up.returncode == 0, up.stdout + up.stderr
    yield stack
    assert stack.ppd("down").returncode == 0
    assert stack.nothing_is_left()


def test_every_path_gives_the_same_greedy_text(real_stack: LocalStack, replica: LocalStack) -> None:
    def force(route: str) -> dict[str, str]:
        return {"x-ppd-admin-key": ADMIN_KEY, "x-ppd-force-route": route}

    answers: dict[str, list[str]] = {}
    for route in ("p-d", "d-local"):
        chat = Chat(real_stack.url, salt=uuid.uuid4().hex)
        # The first turn has nothing to be local to.
        answers[route] = [chat.say(QUESTIONS[0])]
        answers[route] += [chat.say(question, extra_headers=force(route)) for question in QUESTIONS[1:]]
        assert chat.routes == ["p-d", route, route]
    alone = Chat(replica.url)
    answers["replica"] = [alone.say(question) for question in QUESTIONS]
    assert alone.routes == ["replica"] * 3
    assert answers == {route: list(CHAT.values()) for route in ("p-d", "d-local", "replica")}


def test_ppd_chat_shows_path_times_and_cached_tokens(real_stack: LocalStack) -> None:
    done = real_stack.ppd("chat", "--temperature", "0", "--max-tokens", "20", stdin="\n".join(QUESTIONS[:2]))
    assert done.returncode == 0, done.stderr
    for question in QUESTIONS[:2]:
        assert CHAT[question] in done.stdout
    turns = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert turns[0].startswith("[p-d (first-turn)  TTFT ")
    assert all("TPOT" in turn and "cached" in turn and "prompt tokens]" in turn for turn in turns)
    assert len(turns) == 2


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{not json", 400),
        (
            "/v1/chat/completions",
            b'{"model": "no-such", "messages": [{"role": "user", "content": "x"}]}',
            404,
        ),
        (
            "/v1/chat/completions",
            b'{"model": "smollm2", "messages": [{"role": "nobody", "content": "x"}]}',
            400,
        ),
        ("/v1/completions", b'{"model": "smollm2", "prompt": "' + b"word " * 20_000 + b'"}', 400),
    ],
    ids=["bad JSON", "unknown model", "unknown role", "too long"],
)
def test_wrong_input_gets_openai_errors(real_stack: LocalStack, path: str, body: bytes, status: int) -> None:
    answer = httpx.post(real_stack.url + path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
