"""The operator's questions on tables, through a frontend, to a planner on real NATS."""

import asyncio
from typing import Any

import msgspec
import nats
import pytest
from nats.micro import add_service
from nats.micro.request import Request

from ppd.core.names import planner_subject
from tests.contract.controlplane.conftest import Cluster, Stack
from tests.support.nats_client import settled

pytestmark = pytest.mark.contract
KEY = {"x-ppd-admin-key": "k"}


async def ask(stack: Stack, method: str, path: str) -> tuple[int, Any]:
    async with stack.http.request(method, f"{stack.url}/admin/{path}", headers=KEY) as response:
        return response.status, await response.json()


async def test_questions_go_to_the_planner_and_its_refusals_come_back(cluster: Cluster) -> None:
    stack = await cluster.frontend(admin_key="k")
    assert (await ask(stack, "GET", "planner"))[0] == 503
    asked: list[tuple[str, Any]] = []
    connection = await nats.connect(cluster.nats_server.url)
    service = await add_service(connection, name="ppd-planner", version="1.0.0")

    def endpoint(verb: str) -> Any:
        async def handle(request: Request) -> None:
            body = msgspec.json.decode(request.data)
            asked.append((verb, body))
            if body.get("version") == 99:
                await request.respond_error(code="404", description="there is no version 99")
            else:
                await request.respond(msgspec.json.encode({"verb": verb}))

        return handle

    verbs = ["status", "table.get", "table.history", "table.diff", "rollback", "freeze", "unfreeze"]
    for number, verb in enumerate(verbs):
        subject = planner_subject(cluster.namespace, verb)
        await service.add_endpoint(name=f"e{number}", subject=subject, handler=endpoint(verb))
    await settled(connection)
    one = {"model": "a/b", "placement": "1P3D"}
    query = "model=a/b&placement=1P3D"
    for method, path, verb, sent in (
        ("GET", "planner", "status", {}),
        ("GET", f"table?{query}", "table.get", one),
        ("GET", f"table?{query}&version=3", "table.get", one | {"version": 3}),
        ("GET", "table/history", "table.history", {"model": "", "placement": ""}),
        ("GET", f"table/diff?{query}&old=1&new=2", "table.diff", one | {"from": 1, "to": 2}),
        ("POST", f"table/rollback?{query}&version=2", "rollback", one | {"version": 2}),
        ("POST", f"table/freeze?{query}", "freeze", one),
        ("POST", f"table/unfreeze?{query}", "unfreeze", one),
    ):
        async with asyncio.timeout(20):
            assert await ask(stack, method, path) == (200, {"verb": verb})
        assert asked[-1] == (verb, sent)
    status, answer = await ask(stack, "POST", f"table/rollback?{query}&version=99")
    assert (status, answer["error"]["message"]) == (404, "there is no version 99")
    await connection.close()
