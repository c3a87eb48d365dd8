"""The OpenAI surface: what is refused and how, health, models, the document."""

import asyncio
import json
from typing import Any

import pytest

from ppd.core import seeds
from ppd.core.names import Role, table_key
from ppd.core.placement import parse_placement
from ppd.core.records import encode
from tests.unit.controlplane.conftest import Stack, running

pytestmark = pytest.mark.unit


async def post(
    stack: Stack, data: bytes, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, Any]:
    async with stack.http.post(stack.url + path, data=data, headers=headers) as response:
        return response.status, await response.json()


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"null", None),
        (b'"text"', None),
        (b"\xff\xfe", None),
        (b'{"model":"m"}', "messages"),
        (b'{"messages":[{"role":"user","content":"x"}]}', "model"),
        (chat(model=5), "model"),
        (chat(model=None), "model"),
        (chat(messages=[]), "messages"),
        (chat(messages="x"), "messages"),
        (chat(messages=[{"content": "x"}]), "messages[0]"),
        (chat(messages=[{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
        (chat(max_tokens="many"), "max_tokens"),
        (chat(max_tokens=1 << 70), "max_tokens"),
        (chat(stream="perhaps"), "stream"),
        (chat(n=[]), "n"),
        (chat(stream=True, stream_options=[]), "stream_options"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', None),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'{"model":"m","messages":' + b'[{"role":"user","content":' * 5000, None),
    ],
)
async def test_bad_requests_get_openais_shape(stack: Stack, data: bytes, param: str | None) -> None:
    status, answer = await post(stack, data)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]
    if param is not None:
        assert answer["error"]["param"] == param
    assert not stack.engines["p0"].requests


async def test_an_unknown_model_is_404_and_known_ones_are_listed(stack: Stack) -> None:
    status, answer = await post(stack, chat(model="nope"))
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    async with stack.http.get(stack.url + "/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["m"]
    for name, expected in (("m", 200), ("nope", 404)):
        async with stack.http.get(f"{stack.url}/v1/models/{name}") as response:
            assert response.status == expected


async def test_a_model_that_lost_its_workers_is_503_not_404(stack: Stack) -> None:
    stack.frontend.fleet.update({})
    assert (await post(stack, chat()))[0] == 503
    assert (await post(stack, chat(model="nope")))[0] == 404


async def test_before_any_worker_came_everything_is_503() -> None:
    async with running({}) as stack:
        assert (await post(stack, chat()))[0] == 503
        async with stack.http.get(stack.url + "/health") as response:
            health = await response.json()
            assert response.status == 503
        assert health["status"] == "unavailable"
        assert "no worker is registered" in health["why"]
        async with stack.http.get(stack.url + "/live") as response:
            assert response.status == 200


async def test_health_names_what_is_missing() -> None:
    async with running({"d0": Role.DECODE}) as stack:
        async with stack.http.get(stack.url + "/health") as response:
            health = await response.json()
            assert response.status == 200
        assert health["status"] == "degraded"
        assert health["models"]["m"]["missing"] == ["prefill"]
        assert any("no prefill worker" in why for why in health["why"])


async def test_health_is_degraded_for_want_of_a_table_where_one_decides() -> None:
    for policy, placement, lacks in (
        ("adaptive", {"p0": Role.PREFILL, "d0": Role.DECODE}, True),
        ("static:x=0.5", {"p0": Role.PREFILL, "d0": Role.DECODE}, False),
        ("adaptive", {"r0": Role.REPLICA}, False),
    ):
        async with running(placement, policy=policy) as stack:
            async with stack.http.get(stack.url + "/health") as response:
                health = await response.json()
                assert response.status == 200
            assert health["models"]["m"]["lacks_table"] is lacks
            assert any("no table for 1P1D" in why for why in health["why"]) is lacks
            if lacks:
                assert health["status"] == "degraded"


async def test_health_names_the_policy(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/health") as answer:
        assert (await answer.json())["policy"] == "adaptive"


async def test_health_counts_a_table_that_came(stack: Stack) -> None:
    table = seeds.nearest(parse_placement(stack.frontend.cluster.placement("m")), "m")
    stack.frontend.tables.update(table_key("m", table.placement), encode(table))
    async with stack.http.get(stack.url + "/health") as response:
        model = (await response.json())["models"]["m"]
    assert (model["table_version"], model["lacks_table"]) == (1, False)


async def test_too_large_too_compressed_and_too_slow_bodies() -> None:
    async with running({"d0": Role.DECODE}, max_body_bytes=1000, body_s=0.1) as stack:
        assert (await post(stack, b"x" * 2000))[0] == 413
        assert (await post(stack, chat(), **{"content-encoding": "gzip"}))[0] == 415
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"800\r\n" + b"x" * 0x800 + b"\r\n0\r\n\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("path", ["/nope", "/v1", "/admin", "/v1/chat/completions/x"])
async def test_other_paths_are_404_in_the_same_shape(stack: Stack, path: str) -> None:
    status, answer = await post(stack, b"{}", path)
    assert status == 404
    assert answer["error"]["type"] == "not_found_error"


async def test_other_methods_are_405(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/v1/chat/completions") as response:
        assert response.status == 405
        assert (await response.json())["error"]


async def test_the_document_describes_the_hot_paths(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/openapi.json") as response:
        document = await response.json()
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"][
            "$ref"
        ]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert field in schema["required"]
        assert "429" in document["paths"][path]["post"]["responses"]


async def test_admin_is_off_without_a_key_and_needs_it_with_one(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/admin/workers", headers={"x-ppd-admin-key": ""}) as response:
        assert response.status == 403
    async with running({"p0": Role.PREFILL, "d0": Role.DECODE}, admin_key="k") as other:
        await other.ask("hi")
        for path in ("workers", "sessions", "turns"):
            for key, expected in (("k", 200), ("x", 403)):
                headers = {"x-ppd-admin-key": key}
                async with other.http.get(f"{other.url}/admin/{path}", headers=headers) as response:
                    assert response.status == expected
        headers = {"x-ppd-admin-key": "k", "x-ppd-force-route": "d-local"}
        assert (await other.ask("new", headers=headers))[:2] == ("d-local", "forced")
        headers["x-ppd-force-route"] = "nowhere"
        async with await other.chat("new", headers=headers) as response:
            assert response.status == 400


async def test_metrics_have_units_and_bounded_labels(stack: Stack) -> None:
    await stack.ask("hi")
    async with stack.http.get(stack.url + "/metrics") as response:
        text = await response.text()
    assert 'ppd_requests_total{path="p-d",reason="first-turn",status="200"}' in text
    assert "ppd_ttft_seconds_bucket" in text
    assert stack.frontend.ledger.recent[-1].request_id not in text


async def test_every_metric_of_a_turn_is_there_by_path(stack: Stack) -> None:
    _, _, answer = await stack.ask("hi")
    async with await stack.chat(
        "hi", answer["choices"][0]["message"]["content"], "more", stream=True
    ) as turn:
        await turn.read()
    async with stack.http.post(stack.url + "/v1/responses", json={"model": "m", "input": "x"}) as response:
        await response.read()
    async with stack.http.get(stack.url + "/metrics") as response:
        text = await response.text()
    for name in ("ppd_ttft_seconds", "ppd_e2e_seconds", "ppd_queue_seconds"):
        for path in ("p-d", "d-local"):
            assert f'{name}_count{{path="{path}"}}' in text
    for line in (
        'ppd_tpot_seconds_count{path="d-local"}',
        'ppd_requests_total{path="d-local",reason="one-engine",status="200"}',
        "ppd_decision_seconds_count",
        "ppd_loop_lag_seconds ",
        "ppd_sessions ",
        'ppd_tokens_total{kind="cached"}',
    ):
        assert line in text, line
