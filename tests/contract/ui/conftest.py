"""A stack of simulated engines whose model has a hostile name, some turns on it, and a headless browser."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppd.cli.stack.ports import is_free

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'"
)

MODEL = "<img src=x onerror=document.title='owned'>"
ADMIN_KEY = "key-of-the-page-test"
_START_S = 240


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def _ports() -> range:
    """Of this test process alone, where several run at once."""
    first = 27100 + 20 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return range(first, first + 20)


class Stack:
    """`ppd up` as a process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = next(port for port in _ports() if is_free("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "up.log"
        self._env = os.environ | {
            "PPD_HOME": str(folder / ".ppd"),
            "PPD_ADMIN_KEY": ADMIN_KEY,
            "PPD_JAEGER_URL": "http://jaeger.example:16686/",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1/v1/traces",  # trace ids, and no collector
        }
        up = [*self._ppd("up"), "--engine", "sim", "--placement", "1P2D", "--port", str(self.port)]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen([*up, "--model", MODEL], env=self._env, stdout=log, stderr=log)

    @staticmethod
    def _ppd(*argv: str) -> list[str]:
        return [sys.executable, "-m", "ppd.cli.main", *argv]

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON that the frontend answers."""
        data = None if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json", "x-ppd-admin-key": ADMIN_KEY} | headers
        request = urllib.request.Request(self.url + path, data, given)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def wait(self) -> None:
        until_s = time.monotonic() + _START_S
        while time.monotonic() < until_s and self.process.poll() is None:
            try:
                health = self.ask("/health")
                if health["status"] == "ok" and health["models"][MODEL]["table_version"]:
                    return
            except (OSError, KeyError):
                pass
            time.sleep(0.3)
        raise AssertionError(f"the stack does not serve:\n{self._log.read_text()[-3000:]}")

    def chat(self, turns: int, session: str = "") -> None:
        messages: list[dict[str, str]] = []
        for turn in range(turns):
            messages.append({"role": "user", "content": f"{turn} tell me of the sea " * 40})
            headers = {"x-session-id": session} if session else {}
            body = {"model": MODEL, "messages": messages, "max_tokens": 24}
            answer = self.ask("/v1/chat/completions", body, **headers)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def stream(self) -> None:
        """A turn whose first token is seen."""
        messages = [{"role": "user", "content": "tell me of the sea " * 40}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "stream": True}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if browser_path() is None:
        pytest.skip("no browser is installed: chromium")
    made = Stack(tmp_path_factory.mktemp("ui"))
    try:
        made.wait()
        made.chat(4, session='"><script>document.title="owned"</script>')
        made.chat(3)
        made.stream()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of a module, not of the session: while it is open no test may run an event loop of its own."""
    path = browser_path()
    if path is None:
        pytest.skip("no browser is installed: chromium")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any, stack: Stack, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A tab of its own; parametrize it indirectly with options of the tab. A fault in it fails the test."""
    context = browser.new_context(
        **({"viewport": {"width": 1440, "height": 900}} | getattr(request, "param", {}))
    )
    made = context.new_page()
    faults: list[str] = []
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on(
        "console",
        lambda message: (
            faults.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    made.set_default_timeout(60_000)
    made.goto(f"{stack.url}/ui")
    yield made
    context.close()
    assert faults == []


def unlock(page: Any) -> None:
    page.get_by_label("Key", exact=True).fill(ADMIN_KEY)
    page.keyboard.press("Enter")
    page.locator(".square").first.wait_for()
