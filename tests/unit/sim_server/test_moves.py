"""What simulated engines tell of the KV that they pull and hold: as the connector does in a real one."""

import asyncio
import socket

import pytest

from ppd.core.names import KV_HOLD, KV_REQUEST_ID, KV_TRACEPARENT, SPAN_KV_TRANSFER, Role
from ppd.core.records import KvHeld, KvMoved
from tests.support.otlp import ERROR, OtlpSink
from tests.unit.sim_server.conftest import FOR_P, STORY, content
from workers.reports import REPORTS_SOCKET, unpack

pytestmark = pytest.mark.unit
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
OF_TURN = {KV_REQUEST_ID: "turn-1", KV_TRACEPARENT: f"00-{TRACE}-{PARENT}-01"}


class FakeAgent:
    """The end of the socket at which reports arrive."""

    def __init__(self, run_dir):
        run_dir.mkdir()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(run_dir / REPORTS_SOCKET))
        self._socket.settimeout(10)

    async def next(self):
        return unpack(await asyncio.to_thread(self._socket.recv, 200_000))

    def close(self):
        self._socket.close()


@pytest.fixture
def sink():
    made = OtlpSink()
    yield made
    made.close()


async def pair(start, tmp_path, sink, pulls=Role.DECODE):
    """P, D, and the agent of the one that pulls, which alone is traced: they are one process here."""
    run_dir = tmp_path / "run"
    agent = FakeAgent(run_dir)
    told = {"run_dir": run_dir, "otlp_endpoint": sink.endpoint}
    p = await start(Role.PREFILL, worker_id="p0-1", **(told if pulls is Role.PREFILL else {}))
    d = await start(Role.DECODE, worker_id="d0-1", **(told if pulls is Role.DECODE else {}))
    return p, d, agent


async def handed_over(p, d, messages, **more):
    prefilled = await p.chat(messages, max_tokens=1, kv={**FOR_P, KV_REQUEST_ID: "turn-1"})
    return await d.chat(messages, kv={**prefilled["kv_transfer_params"], **OF_TURN, **more})


async def test_a_pull_is_a_report_and_a_span_of_its_turn(start, tmp_path, sink):
    p, d, agent = await pair(start, tmp_path, sink)
    prompt = (await handed_over(p, d, STORY))["usage"]["prompt_tokens"]
    moved = await agent.next()
    per_token, block = d.engine.profile.file.kv_bytes_per_token, d.engine.pool.block_size
    assert isinstance(moved, KvMoved)
    assert (moved.request_id, moved.worker_id, moved.source_worker_id) == ("turn-1", "d0-1", "p0-1")
    assert (moved.direction, moved.bytes, moved.error) == ("p-d", prompt * per_token, "")
    assert moved.bytes == d.server.peers.bytes
    assert moved.blocks == -(-prompt // block)
    assert 0 < moved.transfer_s < 10
    await asyncio.to_thread(d.server.moves.close)
    (span,) = sink.wait_for(SPAN_KV_TRANSFER, 1)
    assert (span.trace_id, span.parent_id, span.service) == (TRACE, PARENT, "ppd-kv")
    assert span.attributes["kv.bytes"] == moved.bytes
    assert span.attributes["kv.source.engine_id"] == p.server.handoff.engine_id
    assert span.attributes["kv.destination.engine_id"] == d.server.handoff.engine_id
    assert span.attributes["kv.backend"] == "sim"
    assert span.attributes["kv.gb_per_s"] > 0
    agent.close()


async def test_what_was_cached_does_not_count_and_nothing_to_move_is_no_span(start, tmp_path, sink):
    p, d, agent = await pair(start, tmp_path, sink)
    first = await handed_over(p, d, STORY)
    whole = await agent.next()
    more = [*STORY, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Go on."}]
    await handed_over(p, d, more)
    part = await agent.next()
    assert 0 < part.bytes < whole.bytes
    assert part.cached_blocks > 0
    await asyncio.to_thread(d.server.moves.close)
    assert len(sink.wait_for(SPAN_KV_TRANSFER, 2)) == 2
    agent.close()


async def test_a_failed_pull_is_a_report_and_a_span_with_its_cause(start, tmp_path, sink):
    p, d, agent = await pair(start, tmp_path, sink)
    await p.post("/sim/faults", {"kv_fail": True})
    await handed_over(p, d, STORY)
    moved = await agent.next()
    assert (moved.bytes, moved.error) == (0, "refused: no such engine or blocks")
    await asyncio.to_thread(d.server.moves.close)
    (span,) = sink.wait_for(SPAN_KV_TRANSFER, 1)
    assert (span.status, span.attributes["error.type"]) == (ERROR, "refused")
    agent.close()


async def test_held_kv_is_told_and_pulled_back(start, tmp_path, sink):
    p, d, agent = await pair(start, tmp_path, sink)
    first = await handed_over(p, d, STORY, **{KV_HOLD: True})
    found = [await agent.next(), await agent.next()]
    held = next(each for each in found if isinstance(each, KvHeld))
    assert (held.request_id, held.worker_id) == ("turn-1", "d0-1")
    assert held.params == first["kv_transfer_params"]
    agent.close()
    more = [*STORY, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Go on."}]
    back = await p.chat(more, max_tokens=1, kv={**held.params, **FOR_P})
    assert back["usage"]["prompt_tokens_details"]["cached_tokens"] >= held.tokens - 16
    assert d.engine.leased == 0


async def test_a_pull_back_goes_the_other_way(start, tmp_path, sink):
    p, d, agent = await pair(start, tmp_path, sink, pulls=Role.PREFILL)
    first = await handed_over(p, d, STORY, **{KV_HOLD: True})
    more = [*STORY, {"role": "assistant", "content": content(first)}, {"role": "user", "content": "Go on."}]
    await p.chat(more, max_tokens=1, kv={**first["kv_transfer_params"], **FOR_P, **OF_TURN})
    moved = await agent.next()
    assert (moved.direction, moved.worker_id, moved.source_worker_id) == ("d-p", "p0-1", "d0-1")
    assert moved.bytes > 0
    agent.close()
