"""How long a step takes, in seconds: the hardware's kernels plus the engine's own overheads."""

from collections.abc import Callable, Sequence

from ppd.core.engine.config import EngineConfig
from ppd.core.engine.request import Request
from ppd.core.hardware import HardwareProfile


def mixed_step_s(
    profile: HardwareProfile,
    config: EngineConfig,
    running: Sequence[Request],
    chunks: Sequence[tuple[Request, int]],
) -> float:
    """A step with prefill in it. `chunks`: who prefills, and how many tokens; the others decode one each."""
    prefilling = {id(request) for request, _ in chunks}
    context = batch = 0
    for request in running:
        if id(request) not in prefilling:
            batch += 1
            context += request.computed
    parts = [(n, request.computed) for request, n in chunks]
    decode_ms = profile.step_ms((), max(batch, 1), context)
    added_ms = profile.step_ms(parts, batch, context) - decode_ms
    eager = 0 < config.graph_tokens < batch + sum(n for _, n in chunks)
    step_s = (
        (decode_ms + config.prefill_scale * added_ms) * 1e-3
        + config.step_overhead_s
        + config.prefill_overhead_s
        + config.seq_overhead_s * len(running)
        + (config.eager_s if eager else 0.0)
    )
    if sends := sum(1 for r, n in chunks if r.lease and r.computed + n == r.tokens):
        step_s = max(step_s, config.eager_send_s if eager else 0.0)
        step_s += config.send_s * sends + config.send_more_s * (sends - 1)
    return step_s + config.receive_s * sum(1 for r, n in chunks if n == 1 and r.pulled_tokens)


def run_s(profile: HardwareProfile, config: EngineConfig, batch: int, context: int, steps: int) -> float:
    """`steps` decode steps of `batch` sequences, whose `context` tokens grow by one each in every step."""
    attention_ms = (
        profile.decode_attention_ms(context) + profile.decode_attention_ms(context + batch * (steps - 1))
    ) / 2
    ms = profile.linear_ms(batch) + attention_ms
    return steps * (ms * 1e-3 + config.step_overhead_s + config.seq_overhead_s * batch)


def steps_by(run_s: Callable[[int], float], steps: int, elapsed_s: float) -> int:
    """The first of a run's `steps` that ends `elapsed_s` or more after its begin; the last if none does."""
    low, high = 1, steps
    while low < high:
        middle = (low + high) // 2
        if run_s(middle) >= elapsed_s:
            high = middle
        else:
            low = middle + 1
    return low
