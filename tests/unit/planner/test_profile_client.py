"""One turn and one conversation against a frontend that is scripted."""

import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from planner.profile import client, load, preflight
from planner.profile.capacity import MeasurementPlan
from planner.profile.client import Frontend, TurnError
from planner.profile.conversation import hold
from planner.profile.records import Flag, ProfileError
from planner.profile.words import Words
from ppd.core.names import Route
from tests.unit.planner.profiles import cell

pytestmark = pytest.mark.unit

KEY = "k"
TINY = "small/tiny@0.5"


class FakeFrontend:
    """Answers as many tokens as asked for; a word is a token, and each message costs three more."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        self.route: str | None = None  # instead of the one that is asked for
        self.fail_turn = 0  # of each conversation, by its answers so far
        self.cut = False

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.sessions.append(request.headers["x-session-id"])
        if self.fail_turn and sum(m["role"] == "assistant" for m in body["messages"]) == self.fail_turn - 1:
            return web.json_response({"error": {"message": "no"}}, status=503)
        forced = request.headers.get("x-ppd-force-route")
        if request.headers.get("x-ppd-admin-key") != KEY:
            forced = None
        route = self.route or forced or "p-d"
        answer = web.StreamResponse(
            headers={"x-ppd-route": route, "x-ppd-reason": "forced" if forced else "first-turn"}
        )
        await answer.prepare(request)
        for _ in range(body["max_tokens"]):
            await _event(answer, {"choices": [{"delta": {"content": "a "}}]})
        if not self.cut:
            usage = {
                "prompt_tokens": tokens(body["messages"]),
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": {"cached_tokens": 7},
            }
            await _event(answer, {"choices": [], "usage": usage})
            await answer.write(b"data: [DONE]\n\n")
        return answer

    async def health(self, _: web.Request) -> web.Response:
        model = {"servable": True, "placement": "1P1D", "table_version": 3}
        return web.json_response({"models": {"m": model, "down": {"servable": False}}}, status=503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})


def tokens(messages: list[dict[str, str]]) -> int:
    return sum(3 + len(message["content"].split()) for message in messages)


async def _event(answer: web.StreamResponse, event: dict[str, Any]) -> None:
    await answer.write(b"data: " + msgspec.json.encode(event) + b"\n\n")


@pytest.fixture
def fake() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
async def frontend(fake: FakeFrontend) -> AsyncIterator[Frontend]:
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/chat/completions", fake.chat),
            web.get("/health", fake.health),
            web.get("/v1/models", fake.models),
        ]
    )
    async with TestServer(app) as server, client.session() as http:
        yield Frontend(http, str(server.make_url("/v1")), KEY)


def words() -> Words:
    return Words(random.Random(1), fixed=3.0)


async def test_what_the_frontend_serves(frontend: Frontend):
    cluster = await frontend.cluster()
    assert (cluster.model, cluster.placement, cluster.max_model_len, cluster.table_version) == (
        "m",
        "1P1D",
        4096,
        3,
    )
    with pytest.raises(ProfileError, match="serves m"):
        await frontend.cluster("down")


async def test_no_frontend_is_said_at_once():
    async with client.session() as http:
        with pytest.raises(ProfileError, match="no frontend answers at"):
            await Frontend(http, "http://127.0.0.1:1", KEY).cluster()


async def test_a_turn_is_counted_by_usage_and_timed(frontend: Frontend):
    answer = await frontend.ask([{"role": "user", "content": "a b c"}], 5, "s", 10.0, Route.D_LOCAL)
    assert (answer.route, answer.reason) == ("d-local", "forced")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (6, 5, 7)
    assert answer.text == "a a a a a "
    assert answer.ttft_ms > 0


async def test_without_the_key_nothing_is_forced(fake: FakeFrontend, frontend: Frontend):
    stranger = Frontend(frontend._http, frontend._url, "wrong")
    answer = await stranger.ask([{"role": "user", "content": "a"}], 1, "s", 10.0, Route.D_LOCAL)
    assert answer.route == "p-d"
    with pytest.raises(ProfileError, match="PPD_ADMIN_KEY"):
        await preflight.warm_up(stranger, words())


async def test_an_answer_of_exactly_so_many_tokens_is_asked_for(fake: FakeFrontend, frontend: Frontend):
    await frontend.ask([{"role": "user", "content": "a"}], 9, "s", 10.0)
    body = fake.bodies[0]
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (9, 9, True)


@pytest.mark.parametrize(("name", "value", "why"), [("cut", True, "broke off"), ("fail_turn", 1, "503")])
async def test_a_failed_turn_says_why(
    fake: FakeFrontend, frontend: Frontend, name: str, value: object, why: str
):
    setattr(fake, name, value)
    with pytest.raises(TurnError, match=why):
        await frontend.ask([{"role": "user", "content": "a"}], 2, "s", 10.0)


async def test_a_deadline_ends_a_turn(frontend: Frontend):
    with pytest.raises(TurnError, match="no end after"):
        await frontend.ask([{"role": "user", "content": "a"}], 2, "s", 0.0)


async def test_a_conversation_has_its_cells_shape(fake: FakeFrontend, frontend: Frontend):
    samples = await hold(frontend, words(), cell(TINY), Route.D_LOCAL, 3, 10.0)
    assert [sample.turn for sample in samples] == [2, 3]
    assert all(sample.ok for sample in samples)
    assert (samples[0].n_ctx, samples[0].n_out) == (256, 32)
    assert samples[0].n_in == pytest.approx(16 + 3, abs=2)  # and the template around the answer
    assert samples[1].n_ctx == samples[0].n_ctx + samples[0].n_in + 32
    assert len(set(fake.sessions)) == 1


async def test_no_two_conversations_begin_alike(fake: FakeFrontend, frontend: Frontend):
    drawn = words()
    for _ in range(20):
        await hold(frontend, drawn, cell(TINY), Route.P_D, 2, 10.0)
    first_turns = [body for body in fake.bodies if len(body["messages"]) == 2]
    assert len({body["messages"][0]["content"] for body in first_turns}) == 20
    assert len({body["cache_salt"] for body in first_turns}) == 20


async def test_a_turn_that_went_another_way_measured_nothing(fake: FakeFrontend, frontend: Frontend):
    fake.route = "p-d"
    samples = await hold(frontend, words(), cell(TINY), Route.D_LOCAL, 2, 10.0)
    assert samples[-1].error == "went p-d (forced)"
    assert "went p-d" in await preflight.pulls_back(frontend, words())


async def test_a_pull_back_that_brought_nothing_is_none(frontend: Frontend):
    assert "held only 7 tokens" in await preflight.pulls_back(frontend, words())


@pytest.mark.parametrize(("turn", "counted"), [(1, 1), (2, 1), (3, 2)])
async def test_a_conversation_ends_with_its_failed_turn(
    fake: FakeFrontend, frontend: Frontend, turn: int, counted: int
):
    fake.fail_turn = turn
    samples = await hold(frontend, words(), cell(TINY), Route.D_LOCAL, 3, 10.0)
    assert len(samples) == counted
    assert samples[-1].turn == turn
    assert "503" in samples[-1].error


async def test_a_point_counts_all_but_its_lead(fake: FakeFrontend, frontend: Frontend):
    plan = MeasurementPlan(cell(TINY), rate=200.0, lead=3, counted=4, seconds=1.0, deadline_s=10.0)
    point = await load.measure(frontend, words(), plan, Route.D_LOCAL, 2, random.Random(1))
    assert len(point.samples) == 4
    assert len(set(fake.sessions)) == 7
    assert (point.cell, point.path, point.rate, point.flag) == (TINY, Route.D_LOCAL, 200.0, None)
    fake.fail_turn = 2
    point = await load.measure(frontend, words(), plan, Route.D_LOCAL, 2, random.Random(1))
    assert point.flag is Flag.FAILED


async def test_the_tokenizer_is_learned_from_usage(frontend: Frontend):
    learned = Words(random.Random(3), fixed=99.0, per_word=9.0)

    async def count(text: str) -> int:
        messages = [{"role": "system", "content": learned.start()}, {"role": "user", "content": text}]
        return tokens(messages)

    await learned.calibrate(count)
    system, user = learned.opening(128)
    opening = tokens([{"role": "system", "content": system}, {"role": "user", "content": user}])
    assert opening == 128
    assert tokens([{"role": "user", "content": learned.message(64)}]) == 64
