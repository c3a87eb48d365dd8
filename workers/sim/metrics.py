"""`/metrics` under vLLM's names."""

from collections.abc import Iterator

from ppd.core.engine import EngineConfig
from workers.sim.driver import Driver
from workers.sim.peers import Peers

Sample = tuple[str, str, str, float]  # family, suffix, further labels, value


def page(model: str, driver: Driver, peers: Peers, only: frozenset[str]) -> str:
    """Prometheus text; of the samples named `only`, where it is not empty."""
    lines: list[str] = []
    typed = ""
    for family, suffix, labels, value in _samples(driver, peers):
        name = family + suffix
        if only and name not in only:
            continue
        if family != typed:
            typed = family
            kind = {"_total": "counter", "": "gauge"}.get(suffix, "histogram")
            lines.append(f"# TYPE {family}{'_total' if kind == 'counter' else ''} {kind}")
        lines.append(f'{name}{{engine="0",model_name="{_escaped(model)}"{labels}}} {value}')
    if not only or "vllm:cache_config_info" in only:
        lines.append(_cache_info(driver.engine.config))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _cache_info(config: EngineConfig) -> str:
    blocks = config.kv_capacity_tokens // config.block_size_tokens
    return (
        "# TYPE vllm:cache_config_info gauge\n"
        f'vllm:cache_config_info{{block_size="{config.block_size_tokens}",cache_dtype="auto",engine="0",'
        f'enable_prefix_caching="True",kv_cache_size_tokens="{config.kv_capacity_tokens}",'
        f'num_gpu_blocks="{blocks}"}} 1.0'
    )


def _samples(driver: Driver, peers: Peers) -> Iterator[Sample]:
    engine = driver.engine
    pool = engine.pool
    yield "vllm:num_requests_running", "", "", engine.running
    yield "vllm:num_requests_waiting", "", "", engine.waiting
    yield "vllm:kv_cache_usage_perc", "", "", engine.kv_use
    yield "vllm:prefix_cache_queries", "_total", "", pool.queried_tokens
    yield "vllm:prefix_cache_hits", "_total", "", pool.hit_tokens
    yield "vllm:num_preemptions", "_total", "", engine.preempted
    yield "vllm:prompt_tokens", "_total", "", pool.queried_tokens
    yield "vllm:prompt_tokens_by_source", "_total", ',source="local_compute"', engine.prefilled_tokens
    yield "vllm:prompt_tokens_by_source", "_total", ',source="local_cache_hit"', pool.hit_tokens
    yield "vllm:prompt_tokens_by_source", "_total", ',source="external_kv_transfer"', driver.pulled_tokens
    yield "vllm:generation_tokens", "_total", "", engine.generated_tokens
    yield "vllm:request_success", "_total", ',finished_reason="length"', driver.finished
    histograms = (
        ("vllm:iteration_tokens_total", engine.prefilled_tokens + engine.generated_tokens, engine.steps),
        ("vllm:inter_token_latency_seconds", driver.real_s(engine.itl_s), engine.itl_count),
        ("vllm:time_to_first_token_seconds", driver.ttft_s, driver.ttft_count),
        ("vllm:request_time_per_output_token_seconds", driver.tpot_s, driver.tpot_count),
        ("vllm:request_prefill_time_seconds", driver.real_s(engine.prefill_busy_s), driver.ttft_count),
        ("vllm:request_prefill_kv_computed_tokens", engine.prefilled_tokens, driver.ttft_count),
        ("vllm:nixl_xfer_time_seconds", peers.seconds, peers.reads),
        ("vllm:nixl_bytes_transferred", peers.bytes, peers.reads),
    )
    for family, total, count in histograms:
        yield family, "_bucket", ',le="+Inf"', count
        yield family, "_sum", "", total
        yield family, "_count", "", count
    yield "vllm:nixl_num_failed_transfers", "_total", "", peers.failures
    yield "vllm:nixl_num_kv_expired_reqs", "_total", "", driver.lease_expired
