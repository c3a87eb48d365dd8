"""D dies under real engines: at temperature 0 the client gets the text that it would have got anyway."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.e2e.local_stack import LocalStack, engines_to_ourselves, eventually
from tests.support.processes import send_signal

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "smollm2"
QUESTION = "Count from 1 to 40 and write nothing else than the numbers, with commas between them."


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """1P2D of real vLLM."""
    made = LocalStack(tmp_path_factory.mktemp("real"))
    with engines_to_ourselves():
        try:
            up = made.up("--placement", "1P2D")
            assert up.returncode == 0, up.stdout + up.stderr
            yield made
        finally:
            made.ppd("down")
            send_signal(made.processes(), signal.SIGKILL)


def _signal_engine(stack: LocalStack, name: str, number: signal.Signals) -> None:
    """To all that the agent started; the agent itself lives on and starts the engine anew."""
    send_signal(psutil.Process(stack.pids()[name]).children(recursive=True), number)


def _answer(
    stack: LocalStack, at: int = -1, do: Callable[[str], None] = lambda _: None
) -> tuple[str, str, int]:
    """The streamed answer, who began it, and its tokens by usage; after `at` pieces `do` is called with D."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 96,
        "min_tokens": 96,
    }
    pieces: list[str] = []
    tokens, done = 0, False
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        began = response.headers["x-ppd-decode"]
        for line in response.iter_lines():
            done = done or line == "data: [DONE]"
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event["choices"]:
                if piece := choice["delta"].get("content"):
                    pieces.append(piece)
                    if len(pieces) == at:
                        do(began)
    assert done
    return "".join(pieces), began, tokens


def _all_ready(stack: LocalStack) -> bool:
    ready = httpx.get(f"{stack.url}/health", timeout=10).json()["models"][MODEL]["ready"]
    return ready.get("prefill") == 1 and ready.get("decode") == 2


def test_d_dies_in_the_middle_of_a_stream(stack: LocalStack) -> None:
    undisturbed, _, tokens = _answer(stack)
    assert tokens == 96
    moved, _, moved_tokens = _answer(stack, 20, lambda name: _signal_engine(stack, name, signal.SIGKILL))
    assert (moved, moved_tokens) == (undisturbed, tokens)
    eventually(lambda: _all_ready(stack), 240)


def test_d_dies_before_the_first_token(stack: LocalStack) -> None:
    """Of two turns one waits for d0, which is stopped and then killed."""
    undisturbed, _, _ = _answer(stack)
    _signal_engine(stack, "d0", signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        turns = [pool.submit(_answer, stack) for _ in range(2)]
        time.sleep(3)
        _signal_engine(stack, "d0", signal.SIGKILL)
        assert [turn.result()[:2] for turn in turns] == [(undisturbed, "d1")] * 2
    eventually(lambda: _all_ready(stack), 240)
