"""Fit the hardware profiles in ppd/core/hardware from NVIDIA's measured kernel tables.

Needs `aiconfigurator==0.5.0` (the last release on PyPI that carries the tables) in an environment of its
own: `python scripts/make_hardware_profile.py [NAME ...]` writes one JSON file per GPU and model.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from aiconfigurator.sdk import common, config, models, perf_database
from aiconfigurator.sdk.backends.factory import get_backend
from aiconfigurator.sdk.inference_session import InferenceSession

OUT = Path(__file__).resolve().parent.parent / "ppd" / "core" / "hardware"
# System, backend and version of the tables; GPU memory and one direction of its link, bytes (a second).
GPUS = {
    "h100": ("h100_sxm", "vllm", "0.12.0", 80 * 2**30, 150e9),
    "h200": ("h200_sxm", "vllm", "0.12.0", 141 * 2**30, 150e9),
    "a100": ("a100_sxm", "trtllm", "1.0.0", 80 * 2**30, 100e9),
    "l40s": ("l40s", "trtllm", "1.0.0", 48 * 2**30, 20e9),
}
# Name in aiconfigurator, model that clients ask for, layers, KV heads, head size, weights in bytes.
MODELS = {
    "llama-3.1-8b": ("LLAMA3.1_8B", "meta-llama/Llama-3.1-8B-Instruct", 32, 8, 128, 16.06e9),
    "qwen2.5-14b": ("QWEN2.5_14B", "Qwen/Qwen2.5-14B-Instruct", 48, 8, 128, 29.54e9),
}
# aiconfigurator knows this family's other sizes only; kernels are looked up by shape.
QWEN_14B = ["LLAMA", 48, 40, 8, 128, 5120, 13824, 152064, 32768, 0, 0, 0, None]
TOKENS = [1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384]
NEW = [1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
CACHED = [0, 256, 1024, 4096, 8192, 16384, 32768, 65536]
CONTEXT = [128, 512, 2048, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]
UTILIZATION = 0.9  # vLLM's gpu_memory_utilization
RESERVE_BYTES = 2.5e9  # activations and CUDA graphs
HELD_OUT = [(48, 700), (160, 3000), (700, 0), (900, 2500), (3000, 0), (6000, 0), (300, 12000), (100, 40000)]
HELD_OUT_BATCHES = [(3, 700), (12, 1500), (50, 900), (100, 3000), (200, 600), (30, 12000)]

Latency = dict[str, float]


class Tables:
    """Latencies of one model on one system, by operation, in ms."""

    def __init__(self, system: str, backend: str, version: str, model: str) -> None:
        database = perf_database.get_database(system, backend, version)
        built = models.get_model(model, config.ModelConfig(), backend)
        self._session = InferenceSession(built, database, get_backend(backend))

    def context(self, new: int, cached: int) -> Latency:
        return self._run("static_ctx", 1, new + cached, cached).get_context_latency_dict()

    def generation(self, batch: int, context: int) -> Latency:
        return self._run("static_gen", batch, context, 0).get_generation_latency_dict()

    def _run(self, mode: str, batch: int, isl: int, prefix: int) -> Any:
        runtime = config.RuntimeConfig(batch_size=batch, beam_width=1, isl=isl, osl=2, prefix=prefix)
        return self._session.run_static(runtime, mode)


def attention(latency: Latency) -> float:
    return sum(ms for op, ms in latency.items() if op.endswith("_attention"))


def linear(latency: Latency) -> float:
    return sum(latency.values()) - attention(latency)


def rising(values: list[float]) -> list[float]:
    """The tables' noise removed where more work would take less time."""
    out: list[float] = []
    for value in values:
        out.append(round(max(value, out[-1] if out else 0.0), 4))
    return out


def decode_attention(tables: Tables, total: int) -> float:
    """Attention over `total` tokens of context is the same for few long and many short sequences."""
    shapes = [(b, total // b) for b in (1, 4, 16, 64, 128, 256) if 128 <= total // b <= 16384]
    return median(attention(tables.generation(b, context)) for b, context in shapes or [(1, total)])


def profile(gpu: str, model: str) -> dict[str, Any]:
    system, backend, version, memory, link = GPUS[gpu]
    aic_model, served, layers, kv_heads, head, weights = MODELS[model]
    tables = Tables(system, backend, version, aic_model)
    kv_bytes = 2 * 2 * layers * kv_heads * head
    prefill = [rising([attention(tables.context(new, cached)) for cached in CACHED]) for new in NEW]
    return {
        "name": f"{gpu}-{model}",
        "gpu": gpu,
        "model": served,
        "source": f"aiconfigurator 0.5.0, {system}, {backend} {version}, bf16, one GPU",
        "kv_bytes_per_token": kv_bytes,
        "kv_capacity_tokens": int((memory * UTILIZATION - weights - RESERVE_BYTES) // kv_bytes // 16 * 16),
        "block_size_tokens": 16,
        "max_batch_tokens": 8192 if memory >= 70 * 2**30 else 2048,
        "max_seqs": 1024 if memory >= 70 * 2**30 else 256,
        "max_model_len_tokens": 131072 if model.startswith("llama") else 32768,
        "link_bytes_per_s": link,
        "linear": {"tokens": TOKENS, "ms": rising([linear(tables.context(n, 0)) for n in TOKENS])},
        "prefill_attention": {"new": NEW, "cached": CACHED, "ms": prefill},
        "decode_attention": {
            "context": CONTEXT,
            "ms": rising([decode_attention(tables, total) for total in CONTEXT]),
        },
        "fit_error": {},
    }


def fit_error(fitted: dict[str, Any], tables: Tables) -> dict[str, float]:
    """The largest relative error of the fit on shapes that are not among its nodes."""
    from ppd.core.hardware import parse_profile

    model = parse_profile(json.dumps(fitted).encode())

    def worst(errors: list[float]) -> float:
        return round(max(errors), 4)

    def off(real: Latency, ms: float) -> float:
        return abs(ms / sum(real.values()) - 1)

    step: Callable[..., float] = model.step_ms
    return {
        "prefill_max": worst([off(tables.context(n, c), step([(n, c)], 0, 0)) for n, c in HELD_OUT]),
        "decode_max": worst([off(tables.generation(b, c), step([], b, b * c)) for b, c in HELD_OUT_BATCHES]),
    }


def main(names: list[str]) -> None:
    logging.disable(logging.WARNING)
    common.SupportedModels["QWEN2.5_14B"] = QWEN_14B
    sys.path.insert(0, str(OUT.parents[2]))
    for gpu in GPUS:
        for model in MODELS:
            if names and f"{gpu}-{model}" not in names:
                continue
            fitted = profile(gpu, model)
            fitted["fit_error"] = fit_error(fitted, Tables(*GPUS[gpu][:3], MODELS[model][0]))
            text = json.dumps(fitted, indent=1)
            (OUT / f"{fitted['name']}.json").write_text(compact(text) + "\n")
            print(fitted["name"], fitted["kv_capacity_tokens"], fitted["fit_error"])


def compact(text: str) -> str:
    """Arrays of numbers on one line each, so that a diff can be read."""
    lines: list[str] = []
    joining = False
    for line in text.splitlines():
        stripped = line.strip()
        number = bool(stripped) and (stripped[0].isdigit() or stripped[0] == "-")
        if number or (joining and stripped.startswith("]")):
            lines[-1] += stripped + (" " if stripped.endswith(",") and number else "")
        else:
            lines.append(line)
        joining = number
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
