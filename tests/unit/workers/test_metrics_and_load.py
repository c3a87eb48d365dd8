import random

import pytest

from workers.engine.metrics import EngineSample, cache_info
from workers.load import LoadMeter

pytestmark = pytest.mark.unit

TEXT = """# HELP vllm:num_requests_running Number
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 700.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 9000.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 12.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 12.0
vllm:cache_config_info{block_size="32",num_gpu_blocks="1456",weird="a\\"b,c}"} 1.0
"""


def test_sample_sums_engines_and_takes_only_computed_tokens() -> None:
    sample = EngineSample.parse(TEXT)
    assert (sample.running, sample.waiting, sample.steps, sample.prefill_tokens) == (5, 4, 12, 700)


@pytest.mark.parametrize("text", ["", "<html>", "other_metric 1.0\n"])
def test_what_is_no_vllm_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the metrics"):
        EngineSample.parse(text)


def test_cache_info_reads_labels_with_odd_characters() -> None:
    assert cache_info(TEXT)["num_gpu_blocks"] == "1456"
    assert cache_info(TEXT)["weird"] == 'a"b,c}'


def test_rates_are_over_the_last_ten_seconds() -> None:
    meter = LoadMeter("d0-1")
    meter.report(0.0, EngineSample(prefill_tokens=0, steps=1), None)
    meter.report(5.0, EngineSample(prefill_tokens=5000, steps=2), None)
    meter.report(15.5, EngineSample(prefill_tokens=6000, steps=3), None)
    report = meter.report(16.0, EngineSample(prefill_tokens=7000, steps=4, itl_s=0.5, itl_count=10), 33)
    assert report.prefill_tokens_per_s == pytest.approx(2000)  # since 15.5; older readings are dropped
    assert report.itl_ms == pytest.approx(50)
    assert (report.seq, report.queued_prefill_tokens) == (4, 33)


def test_without_a_connector_the_queue_is_estimated() -> None:
    meter = LoadMeter("r0-1")
    meter.report(0.0, EngineSample(steps=1), None)
    report = meter.report(1.0, EngineSample(steps=2, waiting=3, prefill_tokens=400, ttft_count=4), None)
    assert report.queued_prefill_tokens == 300


def test_a_restarted_engine_gives_no_negative_rate() -> None:
    meter = LoadMeter("d0-1")
    meter.report(0.0, EngineSample(steps=50, prefill_tokens=9000, generation_tokens=100), None)
    report = meter.report(1.0, EngineSample(steps=1, prefill_tokens=10, generation_tokens=1), None)
    assert (report.prefill_tokens_per_s, report.decode_tokens_per_s) == (0, 0)


def _prefills(*requests: tuple[int, float]) -> list[EngineSample]:
    """A reading after each of these requests, of (tokens, seconds)."""
    found = [EngineSample(steps=1)]
    for tokens, seconds in requests:
        last = found[-1]
        found.append(
            EngineSample(
                steps=last.steps + 1,
                prefill_s=last.prefill_s + seconds,
                request_prefill_tokens=last.request_prefill_tokens + tokens,
                prefills=last.prefills + 1,
            )
        )
    return found


def _speed(samples: list[EngineSample]) -> float:
    meter = LoadMeter("d0-1")
    return [meter.report(n * 0.25, sample, 0) for n, sample in enumerate(samples)][
        -1
    ].prefill_speed_tokens_per_s


def test_prefill_speed_leaves_out_what_a_step_costs_by_itself() -> None:
    handed_over, local = (1, 0.0205), (500, 0.52)  # 20 ms a step, 1 ms a token
    assert _speed(_prefills(*[handed_over, local] * 20)) == pytest.approx(1000, rel=0.05)


def test_a_speed_that_drowns_in_noise_is_not_told() -> None:
    rng = random.Random(1)
    short = [(n := rng.randint(1, 40), 0.04 + n / 1000 + rng.uniform(0, 0.2)) for _ in range(60)]
    assert _speed(_prefills(*short)) == 0
    long = [(n := rng.randint(1, 4000), 0.04 + n / 1000 + rng.uniform(0, 0.2)) for _ in range(60)]
    assert _speed(_prefills(*long)) == pytest.approx(1000, rel=0.05)


def test_prompts_that_are_all_alike_tell_no_prefill_speed() -> None:
    assert _speed(_prefills(*[(1, 0.02)] * 40)) == 0
    assert _speed(_prefills((500, 0.5), (1, 0.02))) == 0, "two requests are too few"
