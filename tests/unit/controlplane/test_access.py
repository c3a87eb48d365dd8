"""API keys at the door: who may call, with which class, how much."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.admission.quotas import Quota, shared_memory
from controlplane.errors import ApiError
from ppd.core.names import Role
from ppd.runtime import keys
from ppd.runtime.keys import ApiKey
from tests.support.api_keys import made
from tests.unit.controlplane.conftest import P_D, Stack, running

pytestmark = pytest.mark.unit


async def status(stack: Stack, headers: dict[str, str], *messages: str, **fields: Any) -> int:
    async with await stack.chat(*(messages or ("hi",)), headers=headers, **fields) as response:
        body = await response.json()
        assert (response.status == 200) == ("error" not in body)
        return response.status


async def test_without_a_file_everybody_may_call_and_with_one_only_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    alice = made(file, "alice")
    async with running(P_D) as stack:
        assert await status(stack, {}) == 200
    async with running(P_D, keys=file) as stack:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": alice["authorization"][:-1]}):
            async with await stack.chat("hi", headers=headers) as response:
                assert response.status == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert (await response.json())["error"]["code"] == "invalid_api_key"
                assert response.headers["x-trace-id"]
        assert not stack.engines["p0"].requests
        assert await status(stack, alice) == 200
        assert await status(stack, {"x-api-key": alice["authorization"][7:]}) == 200
        for path, expected in (("/v1/models", 401), ("/live", 200), ("/health", 200), ("/metrics", 200)):
            async with stack.http.get(stack.url + path) as response:
                assert response.status == expected, path
        async with stack.http.get(stack.url + "/v1/models", headers=alice) as response:
            assert response.status == 200
        async with stack.http.post(stack.url + "/tokenize", json={"model": "m", "prompt": "x"}) as response:
            assert response.status == 401


async def test_keys_never_reach_an_engine(tmp_path: Path) -> None:
    alice = made(tmp_path / "k", "alice")
    async with running(P_D, keys=tmp_path / "k") as stack:
        assert await status(stack, alice) == 200
        for engine in stack.engines.values():
            assert "authorization" not in engine.requests[-1].headers


async def test_a_changed_file_is_read_again_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    alice = made(file, "alice")
    async with running(P_D, keys=file) as stack:
        watching = asyncio.create_task(stack.frontend.access.run())
        bob = made(file, "bob")
        async with asyncio.timeout(20):
            while await status(stack, bob) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        file.write_text("{")
        stack.frontend.access.reload()
        assert await status(stack, alice) == 200
        with pytest.raises(keys.KeyFileError):
            made(file, "carol")
        file.write_text("{}")
        async with asyncio.timeout(20):
            while await status(stack, alice) != 401:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        watching.cancel()


async def test_the_keys_class_counts_more_than_the_header(tmp_path: Path) -> None:
    batch, free = made(tmp_path / "k", "b", slo="batch"), made(tmp_path / "k", "f")
    async with running(P_D, keys=tmp_path / "k", slo="interactive") as stack:
        for headers, expected in (
            (batch, "batch"),
            ({**batch, "x-slo-class": "interactive"}, "batch"),
            ({**free, "x-slo-class": "balanced"}, "balanced"),
            (free, "interactive"),
        ):
            assert await status(stack, headers) == 200
            assert stack.frontend.ledger.recent[-1].slo_class == expected
        assert await status(stack, {**free, "x-slo-class": "a b"}) == 400


async def test_too_many_requests_a_minute_are_429_with_retry_after(tmp_path: Path) -> None:
    slow, fast = made(tmp_path / "k", "slow", requests_per_min=3), made(tmp_path / "k", "fast")
    async with running(P_D, keys=tmp_path / "k") as stack:
        assert [await status(stack, slow) for _ in range(3)] == [200] * 3
        async with await stack.chat("hi", headers=slow) as response:
            assert response.status == 429
            assert 1 <= int(response.headers["retry-after"]) <= 120
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
        async with stack.http.get(stack.url + "/v1/models", headers=slow) as response:
            assert response.status == 200
        assert await status(stack, fast) == 200


async def test_too_many_at_once_are_429_until_one_ends_however_it_ends(tmp_path: Path) -> None:
    one = made(tmp_path / "k", "one", max_concurrent=1)
    async with running(P_D, keys=tmp_path / "k") as stack:
        stack.engines["d0"].chunk_gap_s = 30
        for _ in range(3):  # streams that their client leaves
            response = await stack.chat("hi", headers=one, stream=True)
            await response.content.readany()
            assert await status(stack, one) == 429
            response.close()
            async with asyncio.timeout(20):
                while any(worker.running for worker in stack.frontend.cluster.workers.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        stack.engines["d0"].chunk_gap_s = 0
        assert await status(stack, one, model="nope") == 404
        assert await status(stack, one) == 200


async def test_a_keys_token_limit_is_set_or_refused(tmp_path: Path) -> None:
    short = made(tmp_path / "k", "short", max_tokens=8)
    async with running({"d0": Role.DECODE}, keys=tmp_path / "k") as stack:
        engine = stack.engines["d0"]
        assert await status(stack, short, max_tokens=9) == 400
        assert await status(stack, short, max_completion_tokens=9, max_tokens=1) == 400
        assert not engine.requests
        assert await status(stack, short, max_tokens=8) == 200
        assert engine.requests[-1].body["max_tokens"] == 8
        assert await status(stack, short) == 200
        assert engine.requests[-1].body["max_tokens"] == 8
        body = json.dumps({"model": "m", "prompt": "x"})
        async with stack.http.post(stack.url + "/v1/completions", data=body, headers=short) as response:
            assert response.status == 200
        assert engine.requests[-1].body["max_tokens"] == 8
        for path, field in (("/v1/responses", "max_output_tokens"), ("/v1/messages", "max_tokens")):
            for asked, expected in ((9, 400), (3, 200), (None, 200)):
                body = json.dumps({"model": "m", "input": "x", **({field: asked} if asked else {})})
                async with stack.http.post(stack.url + path, data=body, headers=short) as response:
                    assert response.status == expected
            assert engine.requests[-1].body[field] == 8


def key(**limits: int) -> ApiKey:
    return ApiKey(id=1, name="x", sha256="0" * 64, **limits)


def refused(quota: Quota, limited: ApiKey, now_s: float) -> int:
    """Seconds to wait; 0 = it was let in."""
    try:
        quota.enter(limited, now_s)
    except ApiError as error:
        return error.retry_after_s
    quota.leave(limited)
    return 0


@pytest.mark.parametrize("limit", [1, 2, 7, 60])
def test_who_waits_as_long_as_told_is_let_in_and_no_minute_sees_more_than_the_limit(limit: int) -> None:
    quota, limited = Quota(shared_memory(1)), key(requests_per_min=limit)
    now_s, let_in = 1000.0, []
    for _ in range(400):
        wait_s = refused(quota, limited, now_s)
        if wait_s:
            now_s += wait_s
            assert not refused(quota, limited, now_s)
        let_in.append(now_s)
        now_s += 0.37
    for window in {int(at // 60) for at in let_in}:
        assert sum(int(at // 60) == window for at in let_in) <= limit


def test_processes_share_the_limits_and_a_new_one_forgets_what_its_dead_forerunner_held() -> None:
    memory = shared_memory(3)
    quotas = [Quota(memory, 3, own) for own in range(3)]
    limited = key(requests_per_min=9, max_concurrent=2)
    quotas[0].enter(limited, 1000.0)
    quotas[1].enter(limited, 1000.0)
    with pytest.raises(ApiError, match="at once"):
        quotas[2].enter(limited, 1000.0)
    again = Quota(memory, 3, 1)
    again.enter(limited, 1000.0)
    again.leave(limited)
    quotas[0].leave(limited)
    assert [refused(quotas[i % 3], limited, 1000.0) > 0 for i in range(8)] == [False] * 6 + [True] * 2
