"""A frontend as people run it: keys and certificates are read again, and hold over all of its processes."""

import asyncio
import collections
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppd.runtime import keys
from tests.contract.controlplane.conftest import Cluster
from tests.contract.controlplane.processes import Processes, processes
from tests.support.otlp import SilentSink
from tests.support.servers import free_port

pytestmark = pytest.mark.contract


def made(path: Path, name: str, **limits: int) -> dict[str, str]:
    with keys.editing(path) as listed:
        return {"authorization": f"Bearer {keys.add(listed, name, '', **limits)}"}


async def statuses(frontend: Processes, headers: dict[str, str], count: int) -> list[int]:
    async def one() -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        url = frontend.url + "/v1/chat/completions"
        async with frontend.http.post(url, json=body, headers=headers) as response:
            return response.status

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def test_keys_and_their_limits_hold_over_all_processes(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    alice, few = made(file, "alice"), made(file, "few", requests_per_min=10)
    async with processes(cluster, tmp_path, 3, "--keys", str(file)) as frontend:
        assert await statuses(frontend, {}, 6) == [401] * 6
        assert await statuses(frontend, alice, 6) == [200] * 6
        found = [status for _ in range(10) for status in await statuses(frontend, few, 3)]
        assert set(found) == {200, 429}
        assert 10 <= found.count(200) <= 20 + 2, "two minutes' worth at most, where a minute ends meanwhile"
        with keys.editing(file) as listed:
            listed[:] = [key for key in listed if key.name != "alice"]
        os.kill(frontend.process.pid, signal.SIGHUP)
        async with asyncio.timeout(60):
            while await statuses(frontend, alice, 12) != [401] * 12:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert len(frontend.children()) == 3


def certificate(folder: Path, name: str) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
            *("-subj", f"/CN={name}", "-days", "2"),
        ],
        check=True,
        capture_output=True,
    )


async def test_a_new_certificate_is_shown_after_sighup(cluster: Cluster, tmp_path: Path) -> None:
    certificate(tmp_path, "first")
    flags = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    async with processes(cluster, tmp_path, 2, *flags, scheme="https") as frontend:
        host, _, port = frontend.url.rpartition("//")[2].partition(":")

        def shown() -> bool:
            """Whether it is the certificate that lies in the file now."""
            pem = ssl.get_server_certificate((host, int(port)), timeout=10)
            return pem.strip() == (tmp_path / "cert.pem").read_text().strip()

        assert await asyncio.to_thread(shown)
        certificate(tmp_path, "second")
        assert not await asyncio.to_thread(shown)
        os.kill(frontend.process.pid, signal.SIGHUP)
        async with asyncio.timeout(60):
            while not all([await asyncio.to_thread(shown) for _ in range(6)]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        (tmp_path / "key.pem").write_text("broken")
        os.kill(frontend.process.pid, signal.SIGHUP)
        assert (await frontend.chat("hi"))[0] == "d0"
        certificate(tmp_path, "third")
        (tmp_path / "key.pem").write_text("not written yet")
        os.kill(frontend.process.pid, signal.SIGHUP)
        await asyncio.sleep(1)
        for _ in range(6):
            assert (await frontend.chat("hi"))[0] == "d0"


async def test_who_does_not_say_hello_is_let_go(cluster: Cluster, tmp_path: Path) -> None:
    certificate(tmp_path, "first")
    flags = (
        "--tls-cert",
        str(tmp_path / "cert.pem"),
        "--tls-key",
        str(tmp_path / "key.pem"),
        "--head-s",
        "1",
    )
    async with processes(cluster, tmp_path, 1, *flags, scheme="https") as frontend:
        host, _, port = frontend.url.rpartition("//")[2].partition(":")
        for begun in (b"", b"\x16\x03", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        assert (await frontend.chat("hi"))[0] == "d0"
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("hard", ["", "H"])
async def test_more_streams_than_files_are_no_fault_of_the_engines(
    cluster: Cluster, tmp_path: Path, hard: str
) -> None:
    """The limit is raised where it may be; else fewer clients are let in."""
    async with processes(cluster, tmp_path, 1, ulimit=f"ulimit -S{hard}n 160") as frontend:

        async def one(number: int) -> int:
            body = {"model": "m", "messages": [{"role": "user", "content": f"{number}"}], "stream": True}
            url = frontend.url + "/v1/chat/completions"
            async with frontend.http.post(url, json=body) as response:
                await response.read()
                return response.status

        number = 32 if hard else 150
        told = collections.Counter(await asyncio.gather(*(one(number) for number in range(number))))
        assert told[200] >= 25
        assert told[200] + (told[503] if hard else 0) == number
    log = (tmp_path / "log").read_text()
    assert "Too many open files" not in log
    assert "ulimit" in log or not hard


@pytest.mark.parametrize("count", [1, 2])
def test_who_is_let_in_is_served_at_once(count: int, tmp_path: Path) -> None:
    """Not before all that serving needs is imported."""
    port, began_s = free_port(), time.monotonic()
    argv = [sys.executable, "-m", "ppd.cli.main", "frontend", "--port", str(port), "--processes", str(count)]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([*argv, "--etcd", "127.0.0.1:1"], stdout=log, stderr=log)
    try:
        while True:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                connection = socket.create_connection(("127.0.0.1", port), 60)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        let_in_s = time.monotonic() - began_s
        connection.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert time.monotonic() - began_s - let_in_s < let_in_s / 2
        connection.close()
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--keys", "missing.json"), "missing.json"),
        (("--tls-cert", "missing.pem"), "--tls-cert"),
        (("--policy", "magic"), "--policy"),
        (("--processes", "0"), "--processes"),
        (("--tls-key", "key.pem"), "--tls-cert"),
        (("--access-log", "missing/log"), "--access-log missing/log"),
        (("--tokenizer", "model"), "--tokenizer"),
        (("--etcd", "localhost"), "--etcd"),
        (("--etcd", "localhost:x", "--processes", "2"), "--etcd"),
        (("--nats", ""), "--nats"),
    ],
)
def test_bad_settings_are_said_with_status_2(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ppd.cli.main", "frontend", "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert said in done.stderr


async def test_a_process_that_cannot_come_back_keeps_no_client_waiting(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    with keys.editing(file) as all_keys:
        key = keys.add(all_keys, "alice", "")
    async with processes(cluster, tmp_path, 2, "--keys", str(file), "--shutdown-s", "1") as frontend:
        good = file.read_text()
        file.write_text("{")
        os.kill(frontend.children()[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            while "another starts in 2 s" not in (tmp_path / "log").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        for _ in range(20):
            async with asyncio.timeout(10):
                await frontend.chat("hi", authorization=f"Bearer {key}")
        file.write_text(good)
        async with asyncio.timeout(60):
            while len(set(frontend.served_by())) < 2:
                await frontend.chat("hi", authorization=f"Bearer {key}")
                await asyncio.sleep(0.1)


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more spans waiting than one batch holds, any of which might be waited for for an hour."""
    sink = SilentSink()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.base)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
    try:
        async with processes(cluster, tmp_path, 1) as frontend:
            for _ in range(20):
                assert set(await statuses(frontend, {}, 32)) == {200}
            assert await asyncio.to_thread(sink.asked.wait, 60)
        assert frontend.process.returncode == 0, (tmp_path / "log").read_text()
    finally:
        sink.close()
