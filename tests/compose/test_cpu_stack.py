"""The stack with real engines on the CPU: a chat, its KV really moved between containers."""

import openai
import pytest

from ppd.cli.trace.command import main as trace
from tests.compose.stack import Stack, get, until
from tests.support.questions import CHAT

pytestmark = pytest.mark.timeout(2400)
MODEL = "smollm2"


def say(stack: Stack, messages: list[dict[str, str]]) -> tuple[str, str]:
    """The answer, and the route it took."""
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=180, max_retries=0)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=24,
        temperature=0,
    )
    return raw.parse().choices[0].message.content or "", raw.headers["x-ppd-route"]


def test_real_engines_come_up(cpu: Stack) -> None:
    until("both engines serve", cpu.ready, 900)
    _, health = get(f"{cpu.url}/health")
    assert health["models"][MODEL]["placement"] == "1P1D"
    until("their containers are healthy", lambda: all(map(cpu.healthy, ["p0", "d0", "frontend"])))


def test_a_chat_moves_its_kv_between_the_containers(cpu: Stack) -> None:
    messages: list[dict[str, str]] = []
    routes = []
    for question, expected in list(CHAT.items())[:2]:
        messages.append({"role": "user", "content": question})
        answer, route = say(cpu, messages)
        assert answer == expected
        messages.append({"role": "assistant", "content": answer})
        routes.append(route)
    assert routes[0] == "p-d", cpu.turns()
    assert [turn["turn"] for turn in cpu.turns()[:2]] == [2, 1]


def test_the_transfer_is_in_the_trace(cpu: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    first = cpu.turns()[1]["trace_id"]

    def drawn() -> str:
        capsys.readouterr()
        trace([first, "--jaeger", cpu.jaeger])
        text = capsys.readouterr().out
        return text if "kv.transfer" in text else ""

    text = until("its transfer's span arrived", drawn)
    assert "GB/s" in text
    assert " 0 B at" not in text


def test_down_leaves_nothing(cpu: Stack) -> None:
    cpu.compose("down", "-v", timeout_s=400)
    assert cpu.left() == []
