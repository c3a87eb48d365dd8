"""One compose project, driven by the compose command and looked at from outside."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ADMIN_KEY = "only-for-this-test"
PORT, JAEGER_PORT = 27000, 27001
PROJECT = "ppdtest"


def get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Status and JSON; (0, None) where nothing answers."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=dict(headers or {})), timeout=10
        ) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")
    except OSError:
        return 0, None


def until(what: str, check: Callable[[], Any], deadline_s: float = 240) -> Any:
    """The first true value of `check`; an AssertionError that says `what` when there is none in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if value := check():
            return value
        time.sleep(0.5)
    raise AssertionError(f"not within {deadline_s:.0f} s: {what}")


def _run(*argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 300) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Stack:
    """A checkout's deploy/compose with `workers`, and the test's receiver in place of Jaeger."""

    url = f"http://127.0.0.1:{PORT}"
    jaeger = f"http://127.0.0.1:{JAEGER_PORT}"

    def __init__(self, folder: Path, workers: str, own: Path) -> None:
        """`own`: a folder for the admin key and for what `keep_logs` keeps."""
        key = own / "admin-key"
        key.write_text(ADMIN_KEY)
        files = [
            folder / "compose.yaml",
            folder / "workers" / workers,
            Path(os.environ["PPD_TESTS"]) / "compose.test.yaml",
        ]
        self._folder = folder
        self._own = own
        self._env = os.environ | {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": ":".join(map(str, files)),
            "PPD_PORT": str(PORT),
            "JAEGER_PORT": str(JAEGER_PORT),
            "PPD_ADMIN_KEY_FILE": str(key),
        }

    def compose(self, *argv: str, timeout_s: float = 300) -> str:
        if argv[0] == "down":
            self.keep_logs()  # nothing is left of them after it
        command = ("nice", "-n", "10", *os.environ.get("COMPOSE", "docker-compose").split())
        return _run(
            *command, "--project-directory", str(self._folder), *argv, env=self._env, timeout_s=timeout_s
        )

    def keep_logs(self) -> Path:
        """A new folder with what each container said until now, and the state that it is in."""
        folder = self._own / f"logs-{len(list(self._own.glob('logs-*')))}"
        folder.mkdir()
        row = '{{.ID}} {{.Label "com.docker.compose.service"}}'
        for line in _run("docker", "ps", "-a", "--format", row, "--filter", self._label()).splitlines():
            container, service = line.split()
            with (folder / f"{service}.log").open("wb") as log:
                subprocess.run(
                    ["docker", "logs", "--timestamps", container],
                    stdout=log,
                    stderr=log,
                    timeout=60,
                    check=False,
                )
            state = _run("docker", "inspect", "--format", "{{json .State}} {{.RestartCount}}", container)
            (folder / f"{service}.state").write_text(state)
        return folder

    def inspect(self, service: str) -> dict[str, Any]:
        """What Docker knows of the service's container, running or not."""
        found = _run("docker", "ps", "-aq", "--filter", self._label(service)).split()
        assert len(found) == 1, f"{service}: {found}"
        described: list[dict[str, Any]] = json.loads(_run("docker", "inspect", found[0]))
        return described[0]

    def services(self) -> list[str]:
        """Those with a running container."""
        rows = _run(
            "docker", "ps", "--format", '{{.Label "com.docker.compose.service"}}', "--filter", self._label()
        )
        return sorted(rows.split())

    def _label(self, service: str = "") -> str:
        return f"label=com.docker.compose.{f'service={service}' if service else f'project={PROJECT}'}"

    def healthy(self, service: str) -> bool:
        state = self.inspect(service)["State"]
        return bool(state["Running"] and state.get("Health", {}).get("Status") == "healthy")

    def kill(self, service: str) -> int:
        """SIGKILL for the container's first process, as a crash; how often Docker had restarted it before."""
        found = self.inspect(service)
        os.kill(found["State"]["Pid"], signal.SIGKILL)
        return int(found["RestartCount"])

    @contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """The service's container stands still, as one whose disk or machine hangs."""
        container = self.inspect(service)["Id"]
        _run("docker", "pause", container)
        try:
            yield
        finally:
            _run("docker", "unpause", container)

    def restarted(self, service: str, before: int) -> bool:
        return int(self.inspect(service)["RestartCount"]) > before

    def left(self) -> list[str]:
        """What Docker still has of the project."""
        return [
            line
            for kind in (("ps", "-a"), ("volume", "ls"), ("network", "ls"))
            for line in _run("docker", *kind, "-q", "--filter", self._label()).split()
        ]

    def ready(self) -> bool:
        """All that should run is whole: every model has every role, and etcd and NATS are connected."""
        _, health = get(f"{self.url}/health")
        return bool(health) and health["status"] == "ok"

    def status(self) -> dict[str, Any]:
        """`ppd status --json`, run in the frontend's container."""
        status: dict[str, Any] = json.loads(self.compose("exec", "-T", "frontend", "ppd", "status", "--json"))
        return status

    def turns(self) -> list[dict[str, Any]]:
        """The turns of late, the newest first."""
        status, turns = get(f"{self.url}/admin/turns?limit=1000", {"x-ppd-admin-key": ADMIN_KEY})
        assert status == 200, turns
        return list(turns)
