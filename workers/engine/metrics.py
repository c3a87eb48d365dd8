"""vLLM's Prometheus text, read by prometheus_client's parser: only the few families that the agent needs."""

from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

# As `name[]` of the engine's /metrics/, which then renders these alone: a tenth of the whole page's cost.
NAMES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_time_per_output_token_seconds_sum",
    "vllm:request_time_per_output_token_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prefill_kv_computed_tokens_sum",
    "vllm:request_prefill_kv_computed_tokens_count",
)
_WANTED = frozenset(NAMES)


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The engine's counters and gauges at one moment, summed over its data-parallel ranks."""

    running: float = 0
    waiting: float = 0
    kv_use: float = 0
    prefix_queries: float = 0
    prefix_hits: float = 0
    preemptions: float = 0
    prefill_tokens: float = 0  # computed here: neither cached nor pulled
    generation_tokens: float = 0
    steps: float = 0
    itl_s: float = 0
    itl_count: float = 0
    ttft_s: float = 0
    ttft_count: float = 0
    tpot_s: float = 0
    tpot_count: float = 0
    prefill_s: float = 0  # of requests that ended, as the two below
    request_prefill_tokens: float = 0
    prefills: float = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for text that is not Prometheus', or has none of the needed families."""
        sums = dict.fromkeys(NAMES, 0.0)
        seen: set[str] = set()
        for name, labels, value in _samples(text):
            if name == "vllm:prompt_tokens_by_source_total" and labels.get("source") != "local_compute":
                continue
            sums[name] += value
            seen.add(name)
        if NAMES[0] not in seen:
            raise ValueError("these are not the metrics of a vLLM engine")
        return cls(*(sums[name] for name in NAMES))


def _samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    """The wanted samples. Comments and other lines are cut first: the parser's time is per line."""
    lines = (line for line in text.splitlines() if line.partition("{")[0] in _WANTED)
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def cache_info(text: str) -> dict[str, str]:
    """The labels of `vllm:cache_config_info`. Raises ValueError if it is not there."""
    lines = (line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            return dict(sample.labels)
    raise ValueError("the engine's metrics have no vllm:cache_config_info")
