"""Endpoints that run whole on one engine."""

import pytest

from tests.unit.controlplane.conftest import P_2D, Stack, running
from tests.unit.controlplane.fakes import Fault
from tests.unit.controlplane.test_failures import QUICK

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/tokenize"])
async def test_the_body_goes_to_d_and_its_answer_back(stack: Stack, path: str) -> None:
    body = {"model": "m", "prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}}
    async with stack.http.post(stack.url + path, json=body) as response:
        assert response.status == 200
        assert response.headers["x-ppd-reason"] == "one-engine"
        assert "kv_transfer_params" not in await response.json()
    assert stack.engines["d0"].requests[0].path == path
    assert "kv_transfer_params" not in stack.engines["d0"].requests[0].body
    assert not stack.engines["p0"].requests


async def test_streams_pass_through(stack: Stack) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with stack.http.post(stack.url + "/v1/messages", json=body) as response:
        assert (await response.text()).count("data: ") == 7


async def test_another_engine_takes_over_and_errors_have_openais_shape() -> None:
    async with running(P_2D, **QUICK) as stack:
        for name, other in (("d0", "d1"), ("d1", "d0")):
            stack.engines[name].faults.append(Fault("status"))
            stack.engines[name].on_request = stack.engines[other].faults.clear
        async with stack.http.post(stack.url + "/tokenize", json={"model": "m", "prompt": "x"}) as response:
            assert response.status == 200
        for body, status in (({"model": "nope"}, 404), ({}, 400)):
            async with stack.http.post(stack.url + "/tokenize", json=body) as response:
                assert response.status == status
                assert (await response.json())["error"]["message"]
