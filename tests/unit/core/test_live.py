import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ppd.core import live, policies, seeds
from ppd.core.cells import Cell, Context, Ratio
from ppd.core.decision import Turn, View, Weights, WorkerView
from ppd.core.names import Reason, Route
from ppd.core.table import Table
from tests.unit.core.tables import record, table

pytestmark = pytest.mark.unit
IDLE = Cell(Context.LARGE, Ratio.MID_BAL, 0.5)
HERE = Cell(Context.LARGE, Ratio.MID_BAL, 8.0)
TABLE = table(record(IDLE, p_d=(100, 8), d_local=(50, 8)), record(HERE, p_d=(400, 10), d_local=(80, 11)))
ROW = TABLE.lookup(HERE.slot)
SPEED = 10_000  # tokens a second: a tenth of a ms a token


def turn(**changes: float) -> Turn:
    usual = {
        "turn": 2,
        "n_in": 128,
        "n_out": 128,
        "n_ctx": 2048,
        "qps": 8,
        "d_cached": 2048,
        "p_cached": 1024,
    }
    return Turn(**{**usual, **changes})


def worker(**changes: float) -> WorkerView:
    return WorkerView(**{"worker_id": "w", "age_s": 0.1, "prefill_speed_tokens_per_s": SPEED, **changes})


def corrected(one: Turn | None = None, p: WorkerView | None = None, d: WorkerView | None = None, t=TABLE):
    return live.correct(one or turn(), View(p or worker(), d or worker()), t.lookup(HERE.slot), t)


def test_an_idle_cluster_serves_at_the_idle_figures():
    got = corrected()
    assert got[Route.P_D].ttft_ms == pytest.approx(100)
    assert got[Route.D_LOCAL].ttft_ms == pytest.approx(50)
    assert got[Route.D_LOCAL].tpot_ms == got[Route.P_D].tpot_ms  # nobody is held up


def test_at_the_usual_batch_d_local_is_as_measured():
    usual = ROW.baseline.running
    assert usual == pytest.approx(8 * (1024 + 128) * 0.011)
    got = corrected(d=worker(running=round(usual)))
    assert got[Route.D_LOCAL].ttft_ms == pytest.approx(80, rel=0.01)
    assert got[Route.D_LOCAL].tpot_ms == pytest.approx(11, rel=0.02)


def test_what_p_has_yet_to_send_goes_first():
    def ttft(unsent: int, bytes_per_s: float) -> tuple[float, float]:
        view = View(
            worker(unsent_kv_tokens=unsent),
            worker(),
            kv_bytes_per_token=100_000,
            link_bytes_per_s=bytes_per_s,
        )
        got = live.correct(turn(), view, ROW, TABLE)
        return got[Route.P_D].ttft_ms, got[Route.D_LOCAL].ttft_ms

    assert ttft(0, 1e9) == pytest.approx((100, 50))
    assert ttft(8000, 1e9) == pytest.approx((800, 50))
    assert ttft(8000, 50e9) == pytest.approx((100, 50))  # all sent while P computes
    assert ttft(8000, 0.0) == pytest.approx((100, 50))  # how fast the link is, is not known


def test_the_queue_of_p_is_added_to_p_d_alone():
    got = corrected(p=worker(queued_prefill_tokens=5000))
    assert got[Route.P_D].ttft_ms == pytest.approx(600)
    assert got[Route.D_LOCAL].ttft_ms == pytest.approx(50)


def test_what_p_lacks_makes_p_d_dearer():
    assert corrected(turn(p_cached=0))[Route.P_D].ttft_ms == pytest.approx(202.4)
    assert corrected(turn(p_cached=2048))[Route.P_D].ttft_ms < 100


def test_a_paste_takes_its_time_over_a_slow_link():
    def p_d(bytes_per_s, n_in):
        one = turn(n_in=n_in, n_ctx=2048, p_cached=1024)
        view = View(worker(), worker(), kv_bytes_per_token=100_000, link_bytes_per_s=bytes_per_s)
        return live.correct(one, view, ROW, TABLE)[Route.P_D].ttft_ms

    assert p_d(1e9, 1128) - p_d(0, 1128) == pytest.approx(100)  # 1,000 tokens more than the shape's
    assert p_d(1e9, 100) == p_d(0, 100)


def test_the_queue_of_d_is_added_to_d_local_and_hides_behind_p():
    got = corrected(d=worker(queued_prefill_tokens=900))
    assert got[Route.D_LOCAL].ttft_ms == pytest.approx(140)
    assert got[Route.P_D].ttft_ms == pytest.approx(100)
    assert corrected(d=worker(queued_prefill_tokens=9000))[Route.P_D].ttft_ms == pytest.approx(900)


def test_a_full_d_has_lost_part_of_the_conversation():
    half, full = corrected(d=worker(kv_use=0.95)), corrected(d=worker(kv_use=1.0))
    assert half[Route.D_LOCAL].ttft_ms == pytest.approx(50 + 102.4)
    assert full[Route.D_LOCAL].ttft_ms == pytest.approx(50 + 204.8)


def test_a_bigger_batch_is_charged_for_being_held_up():
    few, many = corrected(d=worker(running=110)), corrected(d=worker(running=200))
    a_token = TABLE.interference_ms * TABLE.prefill_tokens_per_s / SPEED
    assert many[Route.D_LOCAL].tpot_ms - few[Route.D_LOCAL].tpot_ms == pytest.approx(
        90 * 128 / 1152 * a_token
    )
    assert many[Route.P_D].tpot_ms == few[Route.P_D].tpot_ms


def test_a_local_prefill_is_charged_by_ds_own_speed_where_d_told_it():
    learned = Table(structs.replace(TABLE.snapshot, pause_ms=0.5))  # of all D, and noisy

    def charge(speed: float) -> float:
        got = corrected(d=worker(running=100, prefill_speed_tokens_per_s=speed), t=learned)
        return got[Route.D_LOCAL].tpot_ms - got[Route.P_D].tpot_ms

    assert charge(10_000) == pytest.approx(0.1 * 100 * 128 / 1152)
    assert charge(2_000) == pytest.approx(5 * charge(10_000))
    assert charge(0) == pytest.approx(0.5 * 100 * 128 / 1152)  # not told


def test_short_answers_mean_more_local_prefills_between_two_tokens():
    def tpot(n_out_mean):
        view = View(worker(), worker(running=100), n_out_mean=n_out_mean)
        return live.correct(turn(), view, ROW, TABLE)[Route.D_LOCAL].tpot_ms

    assert tpot(100) > tpot(1152) == tpot(0)


@pytest.mark.parametrize("placement", seeds.PLACEMENTS)
def test_the_tables_own_slope_is_an_h100s(placement):
    assert 0.015 < Table(seeds.load(seeds.name(placement))).interference_ms < 0.03


def test_tpot_starts_from_the_latency_of_now():
    assert corrected(d=worker(itl_ms=20))[Route.P_D].tpot_ms == 20
    assert corrected(d=worker(itl_ms=5e-324))[Route.P_D].tpot_ms == ROW.p_d.tpot_ms


def test_throughput_stands_in_for_speed_only_from_below():
    slow = WorkerView("p", age_s=0, prefill_tokens_per_s=10, queued_prefill_tokens=1152)
    fast = WorkerView("p", age_s=0, prefill_tokens_per_s=20_000, queued_prefill_tokens=1000)
    assert corrected(p=slow)[Route.P_D].ttft_ms == pytest.approx(200)  # 1,152 tokens in 100 ms, idle
    assert corrected(p=fast)[Route.P_D].ttft_ms == pytest.approx(150)


def test_pull_back_waits_for_p_and_lacks_only_what_is_new():
    t = table(record(HERE, p_d=(400, 10), d_local=(80, 11), p_d_pullback=(90, 10)))
    got = corrected(turn(p_cached=0), p=worker(queued_prefill_tokens=1000), t=t)
    assert got[Route.P_D_PULLBACK].ttft_ms == pytest.approx(190)
    assert Route.P_D_PULLBACK not in corrected()


@pytest.mark.parametrize("stale", ["p", "d"])
def test_a_stale_report_falls_back_to_the_table_and_says_so(stale):
    view = View(worker(age_s=9 if stale == "p" else 0), worker(age_s=9 if stale == "d" else 0))
    assert live.correct(turn(), view, ROW, TABLE) is None
    decision = policies.make("adaptive").decide(turn(), view, TABLE, Weights())
    assert decision.reason is Reason.LIVE_STALE
    assert decision.expected == ROW.expected
    assert (
        policies.make("adaptive:correction=0").decide(turn(), view, TABLE, Weights()).reason is Reason.TABLE
    )


def test_the_queues_of_now_turn_the_verdict():
    decide = policies.make("adaptive").decide
    calm = decide(turn(), View(worker(), worker(running=10)), TABLE, Weights())
    crowded = decide(
        turn(), View(worker(), worker(running=300, queued_prefill_tokens=4000)), TABLE, Weights()
    )
    assert (calm.path, calm.reason) == (Route.D_LOCAL, Reason.TABLE_LIVE)
    assert (crowded.path, crowded.reason) == (Route.P_D, Reason.TABLE_LIVE)
    assert (
        policies.make("ppd").decide(turn(), View(worker(), worker()), TABLE, Weights()).path is Route.D_LOCAL
    )


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_longer_queue_at_p_never_speaks_against_d_local(queued, more):
    def local(tokens):
        return policies.make("adaptive").decide(
            turn(), View(worker(queued_prefill_tokens=tokens), worker(running=50)), TABLE, Weights()
        )

    assert local(queued + more).score >= local(queued).score - 1e-9
