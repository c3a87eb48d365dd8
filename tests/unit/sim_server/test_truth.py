"""`ppd bench truth` with simulated engines in the place of real ones."""

import aiohttp
import pytest

from bench import truth_load, truth_profile, truth_report
from bench.truth_engines import EngineError, Engines
from bench.truth_load import LoadTurn, path_of
from ppd.core.names import Role, Route

pytestmark = pytest.mark.unit


def limits(engine):
    file, config = engine.profile.file, engine.config
    return truth_profile.EngineLimits(
        file.kv_bytes_per_token,
        config.kv_capacity_tokens,
        config.block_size_tokens,
        config.max_batch_tokens,
        file.max_model_len_tokens,
    )


async def test_a_profile_of_running_engines_and_the_same_load_on_both(start, monkeypatch):
    monkeypatch.setattr(truth_profile, "_REPEATS", 1)
    p, d = await start(Role.PREFILL, speed=3.0), await start(Role.DECODE, speed=3.0, pullback=False)
    async with aiohttp.ClientSession() as session:
        engines = Engines(session, p.url, d.url)
        measured = await truth_profile.measure(engines, limits(d.engine), lambda _: None)
        chats = truth_load.load(measured, 1.0, per_s=3.0)
        real, honest = await truth_load.drive(engines, chats, lambda _: None)
    assert not honest  # its tokens are text's, which it does not tell
    steps = [measured.decode.step_ms((), batch, 64 * batch) for batch in (1, 4, 16)]
    assert 0 < steps[0] <= steps[1] <= steps[2]
    assert measured.prefill.step_ms([(1024, 0)], 0, 0) >= measured.prefill.step_ms([(64, 0)], 0, 0) > 0
    assert len(real) == sum(len(c.turns) for c in chats) > 0
    simulated = truth_load.simulate(measured, chats, honest)
    assert {(t.conversation, t.index, t.path) for t in simulated} == {
        (t.conversation, t.index, t.path) for t in real
    }
    assert p.engine.leased == d.engine.pool.in_use == 0
    assert d.server.driver.pulled_tokens > 0
    groups = truth_report.compare(real, simulated)
    assert sum(g.n for g in groups if g.what == "ttft") == len(real)


async def test_an_engine_that_refuses_is_an_error_that_names_it(start):
    r = await start()
    async with aiohttp.ClientSession() as session:
        engines = Engines(session, r.url, r.url)
        with pytest.raises(EngineError, match="no KV parameters"):
            await engines.prefilled([1, 2, 3])
        await r.post("/sim/faults", {"error_count": 1, "error_status": 503})
        with pytest.raises(EngineError, match="HTTP 503"):
            await engines.stream(r.url, [1, 2, 3], 2)


def test_half_of_the_later_turns_stay_on_d():
    paths = [path_of(c, i) for c in range(10) for i in range(1, 9)]
    assert paths.count(Route.D_LOCAL) == 40
    assert {path_of(c, 0) for c in range(10)} == {Route.P_D}


def test_errors_are_of_medians_over_the_same_turns():
    def turns(ttft_s):
        return [LoadTurn(0, i, Route.P_D, ttft_s * (i + 1), 0.01, 1.0) for i in range(3)]

    found = {(g.turns, g.what): g for g in truth_report.compare(turns(0.1), turns(0.12))}
    assert found["later, P->D", "ttft"].error == pytest.approx(0.2)
    assert found["later, P->D", "ttft"].n == 2
    assert found["first", "tpot"].error == pytest.approx(0)
