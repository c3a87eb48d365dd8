"""The stack with simulated engines: served, killed piece by piece under load, restarted, removed."""

import os
import shlex
import time
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai
import pytest

from ppd.cli.key.command import main as key_command
from ppd.cli.trace.command import main as trace
from ppd.core.names import LEASE_TTL_S
from tests.compose import prometheus
from tests.compose.load import Load
from tests.compose.stack import ADMIN_KEY, Stack, get, until

pytestmark = pytest.mark.timeout(1800)
MODEL = "sim"
SERVICES = ["d0", "d1", "d2", "etcd", "frontend", "jaeger", "nats", "p0", "planner-a", "planner-b"]
UID = "65532"


def chat(stack: Stack, messages: list[dict[str, str]]) -> tuple[str, str, str]:
    """One turn: the answer, its route and its trace's id."""
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=60)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=24)  # type: ignore[arg-type]
    answer = raw.parse().choices[0].message.content or ""
    return answer, raw.headers["x-ppd-route"], raw.headers["x-ppd-reason"]


def test_all_come_up_healthy(sim: Stack) -> None:
    until("every container is healthy", lambda: all(map(sim.healthy, SERVICES)))
    assert sim.services() == SERVICES
    until("the frontend sees the whole placement", sim.ready)
    _, health = get(f"{sim.url}/health")
    assert health["models"][MODEL]["placement"] == "1P3D"


def test_nothing_runs_as_root_and_only_the_endpoint_is_published_on_loopback(sim: Stack) -> None:
    for service in SERVICES:
        found = sim.inspect(service)
        pid = found["State"]["Pid"]
        owner = Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0]
        assert owner == UID, service
        bindings = [b for each in (found["HostConfig"]["PortBindings"] or {}).values() for b in each]
        assert all(binding["HostIp"] == "127.0.0.1" for binding in bindings), service
        assert bool(bindings) == (service in ("frontend", "jaeger")), service
        assert found["HostConfig"]["Memory"], f"{service} has no memory limit"


def test_a_chat_through_the_published_port(sim: Stack) -> None:
    messages = [{"role": "user", "content": "what is the capital of Japan? " * 30}]
    first, route, _ = chat(sim, messages)
    assert route == "p-d"
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "and of Spain?"}]
    chat(sim, messages)
    turns = sim.turns()[:2]
    assert [turn["turn"] for turn in turns] == [2, 1]
    assert len({turn["session_id"] for turn in turns}) == 1


def test_the_turn_is_drawn_from_its_trace(sim: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    session = sim.turns()[0]["session_id"]
    until("its trace arrived", lambda: trace(["--session", session, "--jaeger", sim.jaeger]) == 0)
    drawn = capsys.readouterr().out
    assert "ppd.route" in drawn
    assert "ppd.prefill" in drawn
    assert "where the time went" in drawn


def test_an_admin_endpoint_needs_the_key_from_the_file(sim: Stack) -> None:
    assert get(f"{sim.url}/admin/turns", {"x-ppd-admin-key": "wrong"})[0] == 403
    assert sim.turns()


def test_the_live_page_is_in_the_image(sim: Stack) -> None:
    with urllib.request.urlopen(f"{sim.url}/ui/main.js", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/javascript")
    assert get(f"{sim.url}/ui/data/overview")[0] == 403
    status, overview = get(f"{sim.url}/ui/data/overview", {"x-ppd-admin-key": ADMIN_KEY})
    assert status == 200
    assert [worker["name"] for worker in overview["workers"]] == ["d0", "d1", "d2", "p0"]
    assert overview["jaeger_url"] == "http://127.0.0.1:16686"


# What a healthy run of a few seconds has none of: such a query is right if Prometheus takes it.
RARE = (
    "Errors, by status",
    "Failed turns",
    "Retries, hang-ups, turned away",
    "Background tasks that failed",
    "Verdicts changed",
    "Drift",
)


@pytest.mark.skipif(not prometheus.INSTALLED, reason="prometheus is not installed")
def test_every_query_of_the_dashboards_has_an_answer(sim: Stack, tmp_path: Path) -> None:
    queries = prometheus.dashboard_queries(Path(os.environ["PPD_TEST_COMPOSE"]))
    with Load(sim.url, MODEL), prometheus.scraping(sim, tmp_path) as url:
        for name, query in queries.items():
            if any(f": {rare}" in name for rare in RARE):
                prometheus.ask(url, query)
            else:
                until(f"{name} has data", partial(prometheus.ask, url, query), 60)


@pytest.mark.parametrize("victim", ["d0", "p0", "planner-a", "planner-b", "nats", "etcd"])
def test_a_killed_container_heals_and_no_request_fails(sim: Stack, victim: str) -> None:
    until("the stack is whole before", sim.ready)
    others = {
        service: sim.inspect(service)["State"]["StartedAt"] for service in SERVICES if service != victim
    }
    with Load(sim.url, MODEL) as load:
        until("the load runs", lambda: load.turns > 5)
        before = sim.kill(victim)
        until(f"{victim} is started again", lambda: sim.restarted(victim, before))
        until(f"{victim} is healthy", lambda: sim.healthy(victim))
        until("the stack is whole again", sim.ready)
        seen = load.turns
        until("turns are served after it", lambda: load.turns > seen + 5)
    assert load.failures == []
    assert {service: sim.inspect(service)["State"]["StartedAt"] for service in others} == others


def test_an_etcd_that_stands_still_for_longer_than_a_lease_costs_no_engine(sim: Stack) -> None:
    until("the stack is whole before", sim.ready)
    with Load(sim.url, MODEL) as load:
        until("the load runs", lambda: load.turns > 5)
        with sim.frozen("etcd"):
            time.sleep(LEASE_TTL_S + 5)
        until_s = time.monotonic() + 8
        while time.monotonic() < until_s:
            _, health = get(f"{sim.url}/health")
            assert health["models"][MODEL]["missing"] == [], health
            time.sleep(0.2)
    assert load.failures == []


def test_a_killed_frontend_heals_and_knows_its_sessions(sim: Stack) -> None:
    messages = [{"role": "user", "content": "remember this conversation. " * 30}]
    answer, *_ = chat(sim, messages)
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "do you?"}]
    with Load(sim.url, MODEL) as load:
        until("the load runs", lambda: load.turns > 5)
        before = sim.kill("frontend")
        until("it is started again", lambda: sim.restarted("frontend", before))
        until("the stack is whole again", sim.ready)
        seen = load.turns
        until("turns are served after it", lambda: load.turns > seen + 5)
    chat(sim, messages)
    assert sim.turns()[0]["turn"] == 2


def documented(page: str) -> list[list[str]]:
    """What the page leaves to this file: the arguments of `docker compose`, line by line."""
    text = (Path(os.environ["PPD_TEST_COMPOSE"]).parents[1] / "docs" / page).read_text()
    block = text.split("```sh by=tests/compose/test_sim_stack.py\n")[1].split("```")[0]
    return [shlex.split(line)[2:] for line in block.splitlines()]


def test_the_image_writes_the_file_of_a_placement(sim: Stack) -> None:
    (argv,) = documented("gpu-node.md")
    assert argv[-2:] == [">", "workers/mine.yaml"]
    written = sim.compose(*argv[:-2])
    assert written.startswith("# 1P1D of GPU engines.")
    assert written.count('"--devices"') == 2


def test_an_upgrade_as_documented_fails_no_request(sim: Stack) -> None:
    """Every container is made anew, in the order of the docs; that of the one frontend is without load."""
    build, *steps = documented("operations.md")
    assert build == ["build"]
    assert [step[-1] for step in steps] == ["planner-b", "planner-a", "p0", "d0", "frontend"]
    for *argv, service in steps:
        with ExitStack() as stack:
            load = stack.enter_context(Load(sim.url, MODEL)) if service != "frontend" else None
            before = sim.inspect(service)["Id"]
            sim.compose(*argv, "--force-recreate", service, timeout_s=400)
            assert sim.inspect(service)["Id"] != before
            until(f"{service} is healthy", partial(sim.healthy, service))
            until("the stack is whole", sim.ready)
        assert load is None or (load.turns and load.failures == []), (service, load)


def test_a_restart_of_everything_keeps_tables_and_sessions(sim: Stack) -> None:
    messages = [{"role": "user", "content": "keep this over the restart. " * 30}]
    answer, *_ = chat(sim, messages)
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "is it kept?"}]
    session = sim.turns()[0]["session_id"]
    version = _table_version(sim)
    assert version
    sim.compose("down", timeout_s=300)
    sim.compose("up", "-d", timeout_s=600)
    until("the stack is whole again", sim.ready)
    chat(sim, messages)
    last = sim.turns()[0]
    assert (last["session_id"], last["turn"]) == (session, 2)
    assert _table_version(sim) >= version


def _table_version(stack: Stack) -> int:
    return int(
        until("a table is known", lambda: get(f"{stack.url}/health")[1]["models"][MODEL]["table_version"])
    )


def test_with_a_file_of_api_keys_the_frontend_asks_for_one(
    sim: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/gpu-node.md says: a restart for the first one, none for those after it."""

    def knows(key: str) -> bool:
        return get(f"{sim.url}/v1/models", {"authorization": f"Bearer {key}"})[0] == 200

    file = Path(os.environ["PPD_TEST_COMPOSE"]) / "keys" / "keys.json"
    assert key_command(["new", "alice", "--keys", str(file)]) == 0
    alice = capsys.readouterr().out.split()[-1]
    os.chown(file, int(UID), int(UID))
    sim.compose("restart", "frontend")
    until("the stack is whole again", sim.ready)
    with pytest.raises(openai.AuthenticationError):
        chat(sim, [{"role": "user", "content": "hi"}])
    assert knows(alice)
    assert key_command(["new", "bob", "--keys", str(file)]) == 0
    until("the second key is known", partial(knows, capsys.readouterr().out.split()[-1]), 30)


def test_down_leaves_nothing(sim: Stack) -> None:
    assert sim.left()
    sim.compose("down", "-v", timeout_s=300)
    assert sim.left() == []
