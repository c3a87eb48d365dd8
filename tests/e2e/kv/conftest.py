"""One prefill and one decode engine, shared by all tests of this folder, and a frontend before them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.e2e.kv.frontend import ADMIN_KEY, Frontend
from tests.e2e.local_stack import engines_to_ourselves
from tests.support.kv_engines import Client, Pair, pair
from tests.support.otlp import OtlpSink

HOLD_S = 40  # vLLM declines a read in the last 5 s of it
# float32, since bfloat16's rounding depends on how a prefill is cut, and may turn a greedy choice.
OPTIONS = ["--dtype", "float32", "--kv-cache-gib", "2", "--hold-s", str(HOLD_S), "--pullback-min-tokens", "1"]


@pytest.fixture(scope="package")
def sink() -> Iterator[OtlpSink]:
    sink = OtlpSink()
    yield sink
    sink.close()


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory, sink: OtlpSink) -> Iterator[Pair]:
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
    folder = tmp_path_factory.mktemp("kv")
    with engines_to_ourselves(), pair(folder, *OPTIONS, "--otlp-endpoint", sink.endpoint) as engines:
        asyncio.run(engines.wait({"p0", "d0"}))
        yield engines
    del os.environ["VLLM_SERVER_DEV_MODE"]


@pytest_asyncio.fixture
async def client(engines: Pair) -> AsyncIterator[Client]:
    client = Client(engines)
    yield client
    await client.close()


@pytest.fixture(scope="package")
def frontend(engines: Pair, sink: OtlpSink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """`ppd frontend --pullback`, ready."""
    os.environ["PPD_ADMIN_KEY"] = ADMIN_KEY
    started = Frontend(engines, sink.endpoint, tmp_path_factory.mktemp("frontend"))
    try:
        started.wait()
        yield started
    finally:
        started.end()
        del os.environ["PPD_ADMIN_KEY"]
