"""A hardware profile of running engines, measured from outside: what a step costs, and a hand-off."""

import asyncio
import random
from collections.abc import Callable
from statistics import median

import msgspec

from bench.truth_engines import Engines
from ppd.core.hardware import HardwareProfile
from ppd.core.hardware.profile import GridTable, LineTable, ProfileFile

_NEW = (64, 128, 256, 512, 1024)
_CACHED = (0, 512, 1536)
_BATCHES = (1, 2, 4, 8, 16)
_SHORT, _LONG = 32, 1024  # contexts that decode's attention is told apart by
_DECODED = 24
_SMALL = 16  # new tokens of a prompt that is all overhead
_REPEATS = 3
_VOCABULARY = (1000, 20_000)  # ordinary words, in any vocabulary


class EngineLimits(msgspec.Struct, frozen=True):
    """What no timing tells."""

    kv_bytes_per_token: int
    kv_capacity_tokens: int
    block_size_tokens: int
    max_batch_tokens: int
    max_model_len_tokens: int


class Measured(msgspec.Struct, frozen=True):
    """Both engines, and what lies between them."""

    prefill: HardwareProfile
    decode: HardwareProfile
    request_s: float  # HTTP and tokens in and out, of each request
    setup_s: float  # of a hand-off, whatever its size
    bytes_per_s: float


def draw(rng: random.Random, n: int) -> list[int]:
    """A prompt that no other one begins like."""
    return [rng.randrange(*_VOCABULARY) for _ in range(n)]


async def measure(engines: Engines, limits: EngineLimits, told: Callable[[str], None]) -> Measured:
    rng = random.Random(0)
    prefill, request_s = await _engine(engines, engines.prefill, limits, rng, told)
    decode, decode_request_s = await _engine(engines, engines.decode, limits, rng, told)
    told("hand-offs")
    setup_s, bytes_per_s = await _handoff(engines, limits, decode, decode_request_s, rng)
    return Measured(prefill, decode, (request_s + decode_request_s) / 2, setup_s, bytes_per_s)


async def _engine(
    engines: Engines, url: str, limits: EngineLimits, rng: random.Random, told: Callable[[str], None]
) -> tuple[HardwareProfile, float]:
    await engines.stream(url, draw(rng, _SMALL), 4)  # its first request loads and compiles
    told(f"{url}: decode")
    steps = [await _step_ms(engines, url, batch, _SHORT, rng) for batch in _BATCHES]
    steps = _rising(steps)
    long_ms = await _step_ms(engines, url, 4, _LONG, rng)
    slope = max(0.0, (long_ms - steps[_BATCHES.index(4)]) / (4 * (_LONG - _SHORT)))
    told(f"{url}: prefill")
    whole = {(n, c): await _prefill_ms(engines, url, n, c, rng) for n in _NEW for c in _CACHED}
    small_ms = await _prefill_ms(engines, url, _SMALL, 0, rng)
    request_ms = max(0.0, small_ms - steps[-1])
    linear = _rising([*steps, *(whole[n, 0] - request_ms for n in _NEW)])
    attention = [[max(0.0, whole[n, c] - whole[n, 0]) for c in _CACHED] for n in _NEW]
    file = ProfileFile(
        name=url,
        gpu="none",
        model=await engines.model(url),
        source="measured on the running engine",
        kv_bytes_per_token=limits.kv_bytes_per_token,
        kv_capacity_tokens=limits.kv_capacity_tokens,
        block_size_tokens=limits.block_size_tokens,
        max_batch_tokens=limits.max_batch_tokens,
        max_seqs=min(256, limits.max_batch_tokens),
        max_model_len_tokens=limits.max_model_len_tokens,
        link_bytes_per_s=1e9,
        linear=LineTable(ms=linear, tokens=[*map(float, _BATCHES), *map(float, _NEW)]),
        # A decode's own step is in `linear`, so only what lies beyond the short context is attention.
        prefill_attention=GridTable(
            new=[0.0, *map(float, _NEW)], cached=[*map(float, _CACHED)], ms=[[0.0] * len(_CACHED), *attention]
        ),
        decode_attention=LineTable(context=[0.0, 4.0 * _LONG], ms=[0.0, slope * 4 * _LONG]),
    )
    return HardwareProfile(file), request_ms / 1e3


async def _step_ms(engines: Engines, url: str, batch: int, context: int, rng: random.Random) -> float:
    """One decode step: the median gap of whole answers that run side by side."""
    prompts = [draw(rng, context) for _ in range(batch)]
    await asyncio.gather(
        *(engines.stream(url, p, 1) for p in prompts)
    )  # its cache is warm: they start at once
    found = await asyncio.gather(*(engines.stream(url, p, _DECODED) for p in prompts))
    return median(1e3 * (a.end_s - a.first_s) / (_DECODED - 1) for a in found)


async def _prefill_ms(engines: Engines, url: str, new: int, cached: int, rng: random.Random) -> float:
    """From the sending of a prompt to its first token, with nothing else to do."""
    head = draw(rng, cached)
    if head:
        await engines.stream(url, head, 1)
    took = [1e3 * (await engines.stream(url, head + draw(rng, new), 1)).ttft_s for _ in range(_REPEATS)]
    return median(took)


async def _handoff(
    engines: Engines, limits: EngineLimits, decode: HardwareProfile, request_s: float, rng: random.Random
) -> tuple[float, float]:
    """Seconds whatever the size, and bytes a second."""
    small, large = 256, 1536
    took = {}
    for n in (small, large):
        found = []
        for _ in range(_REPEATS):
            prompt = draw(rng, n)
            first = await engines.prefilled(prompt)
            found.append((await engines.stream(engines.decode, prompt, 1, first.kv)).ttft_s)
        took[n] = median(found)
    per_byte_s = max(1e-12, (took[large] - took[small]) / ((large - small) * limits.kv_bytes_per_token))
    rest_s = took[small] - small * limits.kv_bytes_per_token * per_byte_s
    return max(0.0, rest_s - request_s - 1e-3 * decode.linear_ms(1)), 1 / per_byte_s


def _rising(values: list[float]) -> list[float]:
    """No step is shorter than one with less in it: what says otherwise is noise."""
    found: list[float] = []
    for value in values:
        found.append(max(value, found[-1] if found else 0.0))
    return found
