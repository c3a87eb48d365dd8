"""An engine whose vLLM the connector does not know: refused by name, or served plainly on demand."""

import os
from pathlib import Path

import pytest

from tests.e2e.local_stack import eventually
from tests.support import kv_engines
from tests.support.kv_engines import Agent, Client, metric, pair
from tests.support.otlp import OtlpSink
from tests.support.questions import CAPITAL_ANSWER, CAPITAL_QUESTION

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# Read before vLLM is imported, in every process that is started with its folder in PYTHONPATH.
OTHER_VERSION = """
import sys, types
module = types.ModuleType("vllm._version")
module.__version__ = module.version = "0.33.1"
module.__version_tuple__ = module.version_tuple = (0, 33, 1)
sys.modules["vllm._version"] = module
"""


@pytest.fixture
def other_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are started now say that they are vLLM 0.33.1."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("other_vllm")
def test_an_unknown_vllm_ends_the_agent_with_its_name(tmp_path: Path) -> None:
    args = ["--role", "decode", "--model", kv_engines.test_model(), "--max-model-len", "4096"]
    agent = Agent("d0", tmp_path / "d0", args)
    try:
        assert eventually(lambda: agent.process.poll() is not None, 300)
        assert agent.process.returncode == 1
        assert "vLLM 0.33.1 is not supported by this KV connector (it knows 0.32.x)" in agent.log
        assert "--plain-connector-on-mismatch" in agent.log
    finally:
        agent.end()


@pytest.mark.usefixtures("other_vllm")
async def test_on_demand_it_serves_without_spans_and_says_so(tmp_path: Path) -> None:
    sink = OtlpSink()
    with pair(tmp_path, "--plain-connector-on-mismatch", "--otlp-endpoint", sink.endpoint) as engines:
        await engines.wait({"p0", "d0"})
        assert not engines.p.releases
        assert not engines.p.bidirectional
        assert not engines.d.bidirectional
        client = Client(engines)
        turn = await client.turn([{"role": "user", "content": CAPITAL_QUESTION}])
        await client.close()
        moved = metric(engines.d.url, "vllm:nixl_bytes_transferred_sum")
        assert turn.text == CAPITAL_ANSWER
        assert moved > 0
        assert "SERVING WITHOUT KV SPANS, REPORTS AND PULL-BACK" in engines.agents["d0"].engine_log
    assert sink.spans("kv.transfer") == []
    sink.close()
