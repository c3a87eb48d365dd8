"""The KV hand-off between simulated engines, both ways, and what becomes of P's blocks when it fails."""

import pytest

from ppd.core.names import KV_HOLD, Role
from tests.unit.sim_server.conftest import FOR_P, STORY, content

pytestmark = pytest.mark.unit


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


async def p_then_d(p, d, messages, max_tokens=20, **more):
    prefilled = await p.chat(messages, max_tokens=1, kv=FOR_P)
    return await d.chat(messages, max_tokens=max_tokens, kv={**prefilled["kv_transfer_params"], **more})


async def test_every_path_gives_the_same_text_and_d_computes_one_token(start):
    p, d, r = [await start(role) for role in (Role.PREFILL, Role.DECODE, Role.REPLICA)]
    over_both = await p_then_d(p, d, STORY)
    alone = await r.chat(STORY)
    assert content(over_both) == content(alone)
    assert d.engine.prefilled_tokens == 1
    assert over_both["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    second = [*STORY, {"role": "assistant", "content": content(alone)}, {"role": "user", "content": "Go on."}]
    local, whole = await d.chat(second), await r.chat(second)
    assert content(local) == content(whole)
    assert cached(local) > alone["usage"]["prompt_tokens"]


async def test_p_keeps_its_blocks_until_d_has_read_them(start):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    prefilled = await p.chat(STORY, max_tokens=1, kv=FOR_P)
    assert p.engine.leased == 1
    assert p.engine.pool.in_use > 0
    await d.chat(STORY, kv=prefilled["kv_transfer_params"])
    assert p.engine.leased == p.engine.pool.in_use == 0
    assert d.engine.pool.in_use == 0


async def test_unread_blocks_expire(start):
    p = await start(Role.PREFILL, lease_s=5.0)
    await p.chat(STORY, max_tokens=1, kv=FOR_P)
    await p.until(lambda: p.engine.leased == 0)
    assert "vllm:nixl_num_kv_expired_reqs_total" in await p.get("/metrics")
    assert p.server.driver.lease_expired == 1


async def test_a_used_or_foreign_reference_is_recomputed(start):
    p, d, other = await start(Role.PREFILL), await start(Role.DECODE), await start(Role.DECODE)
    kv = (await p.chat(STORY, max_tokens=1, kv=FOR_P))["kv_transfer_params"]
    first = await d.chat(STORY, kv=dict(kv))
    again = await other.chat(STORY, kv=dict(kv))
    assert content(again) == content(first)
    assert other.engine.prefilled_tokens == again["usage"]["prompt_tokens"]
    assert other.server.peers.failures == 1


async def test_a_request_that_d_refuses_frees_ps_blocks(start):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    kv = (await p.chat(STORY, max_tokens=1, kv=FOR_P))["kv_transfer_params"]
    body = {"model": "no-such-model", "messages": STORY, "max_tokens": 1, "kv_transfer_params": kv}
    await d.post("/v1/chat/completions", body, expect=404)
    await p.until(lambda: p.engine.leased == 0)


async def test_p_pulls_a_conversation_back_from_d(start):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    first = await p_then_d(p, d, STORY, max_tokens=60, **{KV_HOLD: True})
    back = first["kv_transfer_params"]
    assert back["do_remote_decode"]
    assert d.engine.leased == 1
    second = [*STORY, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Go on."}]
    computed = p.engine.prefilled_tokens
    turn = await p.chat(second, max_tokens=1, kv={**back, **FOR_P})
    assert p.engine.prefilled_tokens - computed < 40
    assert cached(turn) >= back["remote_num_tokens"] - 16
    assert d.engine.leased == 0
    done = await d.chat(second, kv=turn["kv_transfer_params"])
    r = await start(Role.REPLICA)
    assert content(done) == content(await r.chat(second))


@pytest.mark.parametrize("fault", [{"kv_fail": True}])
async def test_a_refused_read_is_recomputed_on_d(start, fault):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    await p.post("/sim/faults", fault)
    reply = await p_then_d(p, d, STORY)
    assert cached(reply) == 0
    assert d.engine.prefilled_tokens == reply["usage"]["prompt_tokens"]
