"""A frontend process before the shared engines, and turns as a client of it takes them."""

import contextlib
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.e2e.local_stack import eventually
from tests.support.kv_engines import Pair
from tests.support.servers import binary, free_port

ADMIN_KEY = "kv-admin-key"


class Answer(NamedTuple):
    text: str
    path: str
    reason: str
    cached_tokens: int
    trace_id: str


class Frontend:
    """One `ppd frontend` process; not waited for by being made."""

    def __init__(self, engines: Pair, otlp_endpoint: str, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._log = folder / "frontend.log"
        command = [binary("ppd"), "frontend", "--port", str(port), "--pullback"]
        command += ["--etcd", engines.etcd.address, "--nats", engines.nats.url]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--otlp-endpoint", otlp_endpoint], stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        """Until a model can be served."""

        def ready() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(self.url + "/ready", timeout=5) as reply,
            ):
                return bool(reply.status == 200)
            return False

        eventually(ready)

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def ask(
    session: aiohttp.ClientSession,
    frontend: Frontend,
    messages: list[dict[str, str]],
    force: str = "",
    max_tokens: int = 8,
    stream: bool = False,
    session_id: str = "",
) -> Answer:
    """One turn; `force` is an operator's word on its path."""
    headers = {"x-ppd-force-route": force, "x-ppd-admin-key": ADMIN_KEY} if force else {}
    if session_id:
        headers["x-session-id"] = session_id
    body: dict[str, Any] = {
        "model": "small",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    url = frontend.url + "/v1/chat/completions"
    async with session.post(url, json=body, headers=headers) as reply:
        raw = await reply.read()
        assert reply.status == 200, raw
        text, usage = _streamed(raw) if stream else _whole(raw)
        return Answer(
            text,
            reply.headers["x-ppd-route"],
            reply.headers["x-ppd-reason"],
            usage["prompt_tokens_details"]["cached_tokens"],
            reply.headers.get("x-trace-id", ""),
        )


def _whole(raw: bytes) -> tuple[str, dict[str, Any]]:
    answer = json.loads(raw)
    assert "kv_transfer_params" not in answer
    return answer["choices"][0]["message"]["content"], answer["usage"]


def _streamed(raw: bytes) -> tuple[str, dict[str, Any]]:
    events = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    return text, chunks[-1]["usage"]
