import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ppd.cli import chat

pytestmark = pytest.mark.unit


class FakeFrontend:
    """Answers as it is told, in server-sent events."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.done = True
        self.asked: list[Any] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        headers = {"content-type": "text/event-stream", "x-ppd-route": "d-local", "x-ppd-reason": "table"}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        for event in self.events:
            await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if self.done:
            await answer.write(b"data: [DONE]\n\n")
        return answer


def _delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@pytest.fixture
async def frontend() -> AsyncIterator[tuple[FakeFrontend, str]]:
    fake = FakeFrontend()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.handle)
    async with TestServer(app) as server:
        yield fake, str(server.make_url("")).rstrip("/")


async def _ask(url: str) -> tuple[chat.ChatTurn, str]:
    out = io.StringIO()
    async with aiohttp.ClientSession() as session:
        turn = await chat.ask(session, url, {"messages": []}, out)
    return turn, out.getvalue()


async def test_a_turn_shows_its_text_path_and_tokens(frontend: tuple[FakeFrontend, str]) -> None:
    fake, url = frontend
    usage = {
        "prompt_tokens": 59,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    fake.events = [_delta("Ro"), _delta("me."), {"choices": [], "usage": usage}]
    turn, shown = await _ask(url)
    assert shown == turn.text == "Rome."
    assert (turn.route, turn.reason) == ("d-local", "table")
    assert turn.line().endswith("cached 32 of 59 prompt tokens]")
    assert turn.ttft_ms > 0


async def test_usage_without_details_means_nothing_cached(frontend: tuple[FakeFrontend, str]) -> None:
    fake, url = frontend
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": None}
    fake.events = [_delta("x"), {"choices": [], "usage": usage}]
    turn, _ = await _ask(url)
    assert (turn.cached_tokens, turn.prompt_tokens) == (0, 5)


async def test_a_stream_without_its_end_is_an_error(frontend: tuple[FakeFrontend, str]) -> None:
    fake, url = frontend
    fake.events, fake.done = [_delta("half of")], False
    with pytest.raises(chat.ChatError, match="broke off"):
        await _ask(url)


async def test_an_error_inside_the_stream_is_an_error(frontend: tuple[FakeFrontend, str]) -> None:
    fake, url = frontend
    fake.events = [_delta("half of"), {"error": {"message": "the engine died", "code": 502}}]
    with pytest.raises(chat.ChatError, match="the engine died"):
        await _ask(url)


async def test_a_refusal_is_shown_in_its_own_words(frontend: tuple[FakeFrontend, str]) -> None:
    _, url = frontend
    with pytest.raises(chat.ChatError, match="404"):
        await _ask(url + "/elsewhere")


def test_where_nothing_answers_it_says_how_to_get_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--url", "http://127.0.0.1:9"]) == 1
    assert "nothing answers there; `ppd up` starts a stack" in capsys.readouterr().err


async def test_a_frontend_with_keys_is_given_the_one_of_the_environment() -> None:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer secret":
            return web.json_response({"error": {"message": "an API key is needed"}}, status=401)
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        assert await chat._first_model(url, "secret") == "m"
        with pytest.raises(chat.ChatError, match="401: an API key is needed; set PPD_API_KEY"):
            await chat._first_model(url, "")
