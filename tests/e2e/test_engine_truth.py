"""The engine model against real engines: a profile of both, then the same multi-turn load."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import running
from tests.e2e.local_stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
_TOLERANCE = 0.20


def test_the_model_predicts_what_real_engines_take(tmp_path: Path):
    """Medians of TTFT, TPOT and the whole, by path."""
    with running(LocalStack(tmp_path / "stack", PPD_PULLBACK="false")) as stack:
        workers = {w["record"]["role"]: w["record"] for w in stack.status()["workers"]}
        prefill, decode = workers["prefill"], workers["decode"]
        flags = {
            "--prefill": prefill["url"],
            "--decode": decode["url"],
            "--block-size": decode["block_size_tokens"],
            "--kv-capacity": decode["kv_capacity_tokens"],
            "--kv-bytes-per-token": decode["kv_bytes_per_token"],
            "--max-batch-tokens": decode["max_batch_tokens"],
            "--max-model-len": decode["max_model_len_tokens"],
            "--duration": 120,
            "--plot": tmp_path / "truth.png",
        }
        command = ["bench", "truth", "--json", *(str(part) for pair in flags.items() for part in pair)]
        done = subprocess.run(
            stack.command(*command), env=stack.environment, capture_output=True, text=True, timeout=600
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["turns"] > 50
    assert (tmp_path / "truth.png").stat().st_size > 0
    errors = {(g["turns"], g["what"]): g["predicted_ms"] / g["measured_ms"] - 1 for g in found["groups"]}
    assert {turns for turns, _ in errors} == {"first", "later, P->D", "later, D-local"}
    wide = {name: round(error, 3) for name, error in errors.items()}
    assert all(abs(error) <= _TOLERANCE for error in errors.values()), json.dumps([*wide.items()])
