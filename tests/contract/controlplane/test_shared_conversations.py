"""Several frontends, and several processes of one, serve the same conversations."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from controlplane.shared.sessions import Sharing
from ppd.core.names import Role
from ppd.core.records import SessionRecord
from tests.contract.controlplane.conftest import Cluster, until, written
from tests.contract.controlplane.processes import processes

pytestmark = pytest.mark.contract

TURNS = 4


async def more_engines(cluster: Cluster) -> None:
    for name in ("d1", "d2"):
        await cluster.register(name, Role.DECODE)


async def test_turns_over_the_processes_of_one_frontend_agree_on_one_d(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await more_engines(cluster)
    monkeypatch.setenv("PPD_ADMIN_KEY", "operator")
    async with processes(cluster, tmp_path, 3) as frontend:

        async def conversation(number: int) -> list[str]:
            history, homes = [f"question {number}"], []
            for turn in range(TURNS):
                decode, text = await frontend.chat(*history)
                homes.append(decode)
                history += [text, f"more {turn}"]
            return homes

        homes = await asyncio.gather(*(conversation(number) for number in range(24)))
        assert [len(set(each)) for each in homes] == [1] * 24
        assert len({each[0] for each in homes}) == 3
        await until(lambda: len(frontend.served_by()) == 24 * TURNS)
        assert len(set(frontend.served_by())) == 3

        async def counted() -> float:
            status, text = await frontend.get("/metrics")
            assert status == 200
            lines = [line for line in text.splitlines() if line.startswith("ppd_requests_total{")]
            return sum(float(line.rpartition(" ")[2]) for line in lines)

        async with asyncio.timeout(20):
            while await counted() < 24 * TURNS:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await counted() == 24 * TURNS
        # Whichever process answers, an operator and the live page see the turns of all.
        operator = {"x-ppd-admin-key": "operator"}

        async def seen() -> int:
            _, text = await frontend.get("/ui/data/overview", operator)
            return int(json.loads(text)["late"]["turns"])

        async with asyncio.timeout(20):  # a process tells the others a moment after its turns
            while await seen() < 24 * TURNS:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for _ in range(9):
            status, text = await frontend.get("/ui/data/overview", operator)
            overview = json.loads(text)
            assert (status, overview["processes"], overview["late"]["turns"]) == (200, 3, 24 * TURNS)
            _, text = await frontend.get("/admin/turns?limit=1000", operator)
            assert len({each["request_id"] for each in json.loads(text)}) == 24 * TURNS


async def test_a_few_first_turns_at_once_under_one_id_agree_on_one_d(
    cluster: Cluster, tmp_path: Path
) -> None:
    await more_engines(cluster)
    async with processes(cluster, tmp_path, 3) as frontend:
        for number in range(12):
            ids = {"X-Session-ID": f"chat {number}"}
            found = await asyncio.gather(*(frontend.chat(f"question {i}", **ids) for i in range(3)))
            assert len({decode for decode, _ in found}) == 1
        await until(lambda: len(frontend.served_by()) == 36)
        assert len(set(frontend.served_by())) == 3


async def test_two_frontends_agree_at_once_and_turn_by_turn(cluster: Cluster) -> None:
    await more_engines(cluster)
    one, other = await cluster.frontend(), await cluster.frontend()

    async def home(stack: object, *messages: str, **headers: str) -> tuple[str, str]:
        async with await stack.chat(*messages, headers=headers) as response:  # type: ignore[attr-defined]
            text = (await response.json())["choices"][0]["message"]["content"]
            return response.headers["x-ppd-decode"], text

    for number in range(8):
        ids = {"x-session-id": f"s{number}"}
        found = await asyncio.gather(*(home(stack, "hi", **ids) for stack in (one, other) * 3))
        assert len({decode for decode, _ in found}) == 1
        history, homes = [f"q{number}"], set()
        for turn in range(6):
            decode, text = await home((one, other)[turn % 2], *history)
            homes.add(decode)
            history += [text, "more"]
        assert len(homes) == 1
    assert len(one.frontend.sessions) < 100


async def test_a_turn_that_another_frontend_served_since_is_not_missed(cluster: Cluster) -> None:
    """One served turn 1, another moved the conversation in turn 2: turn 3 goes where it is now."""
    one, other = await cluster.frontend(), await cluster.frontend()
    await one.ask("hi")
    await cluster.register("d1", Role.DECODE)
    await until(lambda: "d1-1" in one.frontend.cluster.workers and "d1-1" in other.frontend.cluster.workers)
    other.frontend.cluster.workers["d0-1"].failed(asyncio.get_running_loop().time() + 60)
    text = "Paris it is."
    async with await other.chat("hi", text, "more") as response:
        assert response.headers["x-ppd-decode"] == "d1"
        await response.read()
    await written(other)
    async with await one.chat("hi", text, "more", text, "and") as response:
        assert response.headers["x-ppd-decode"] == "d1"
    assert len(one.frontend.sessions) == 1


async def test_a_dead_process_is_replaced_and_loses_no_conversation(cluster: Cluster, tmp_path: Path) -> None:
    await more_engines(cluster)
    async with processes(cluster, tmp_path, 2) as frontend:
        histories = {}
        for number in range(10):
            decode, text = await frontend.chat(f"question {number}")
            histories[number] = (decode, [f"question {number}", text, "more"])
        victim = frontend.children()[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(frontend.children()) == 2 and victim not in frontend.children())
        for decode, history in histories.values():
            assert (await frontend.chat(*history))[0] == decode
        status, text = await frontend.get("/metrics")
        assert status == 200
        os.kill(frontend.process.pid, signal.SIGKILL)  # the others notice, and end
        frontend.process.wait(10)

        def port_free() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(frontend.url.rpartition(":")[2]))) != 0

        await until(port_free)


async def test_a_claim_that_the_bucket_does_not_answer_stands(cluster: Cluster) -> None:
    stack = await cluster.frontend(session_wait_s=0.1)
    sharing: Sharing = stack.frontend.sharing
    cluster.nats_server.pause()
    try:
        record = SessionRecord(
            session_id="s", model="m", turn=1, boundary="0", after="0", decode_worker="d0-1"
        )
        assert await sharing.claim("xabc", record) is record
        assert await sharing.get("0123") is None
        async with await stack.chat("hi", headers={"x-session-id": "s"}) as response:
            assert response.status == 200
    finally:
        cluster.nats_server.resume()
