"""Second names and adapters: registered, and registered again when they change."""

import aiohttp
import pytest

from tests.contract.workers.conftest import Worker, until

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]


async def post(url: str, path: str, **fields: str) -> None:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=fields) as reply:
        assert reply.status == 200, await reply.text()


async def names(agent: Worker, expected: dict[str, str]) -> None:
    await until(agent.record, lambda record: record.other_models == expected, lambda: agent.log)


async def test_an_adapter_is_registered_while_it_is_loaded(worker) -> None:
    agent = worker("d0", "--role", "decode", engine_args=["--served-model-name", "small", "second"])
    record = await agent.record()
    assert (record.model, record.other_models) == ("small", {"second": ""})
    await post(record.url, "/v1/load_lora_adapter", lora_name="french", lora_path="/adapters/french")
    await names(agent, {"second": "", "french": "small"})
    assert (await agent.record()).worker_id == record.worker_id
    await post(record.url, "/v1/unload_lora_adapter", lora_name="french")
    await names(agent, {"second": ""})
