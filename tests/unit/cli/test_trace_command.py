"""`ppd trace` against a small server that answers as Jaeger's query API does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ppd.cli.trace.command import main

pytestmark = pytest.mark.unit
ANSWERS = Path(__file__).parent / "trace_answers"
P_D, MOVED, D_LOCAL = (
    json.loads((ANSWERS / f"{name}.json").read_text())["data"][0] for name in ("p_d", "moved", "d_local")
)


class FakeJaeger(ThreadingHTTPServer):
    """Knows the recorded traces; notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.found = [D_LOCAL, P_D, MOVED]
        self.broken: tuple[int, bytes] | None = None
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeJaeger

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        status, body = 200, b""
        if self.server.broken:
            status, body = self.server.broken
        elif url.path == "/api/traces":
            self.server.asked.append(parse_qs(url.query))
            body = json.dumps({"data": self.server.found, "errors": None}).encode()
        else:
            known = {trace["traceID"]: trace for trace in (P_D, MOVED, D_LOCAL)}
            trace = known.get(url.path.rpartition("/")[2])
            status = 200 if trace else 404
            body = (
                json.dumps({"data": [trace]}).encode() if trace else (ANSWERS / "not_found.json").read_bytes()
            )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def jaeger() -> Iterator[FakeJaeger]:
    server = FakeJaeger()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_one_by_its_id(jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([P_D["traceID"], "--jaeger", jaeger.url]) == 0
    assert "kv.transfer" in capsys.readouterr().out


def test_an_unknown_id(jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["abc123", "--jaeger", jaeger.url]) == 1
    assert "has no trace abc123" in capsys.readouterr().err


def test_a_session_is_searched_by_its_tag_and_drawn_in_order(
    jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--session", "s-41c7", "--since", "2h", "--jaeger", jaeger.url]) == 0
    (query,) = jaeger.asked
    assert json.loads(query["tags"][0]) == {"ppd.session": "s-41c7"}
    assert query["service"] == ["ppd-frontend"]
    assert int(query["end"][0]) - int(query["start"][0]) == 2 * 3600 * 10**6
    out = capsys.readouterr().out
    assert out.rindex(P_D["traceID"]) < out.rindex(D_LOCAL["traceID"])  # the D-local turn came 5 s later


def test_the_slowest(jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--slowest", "2", "--jaeger", jaeger.url]) == 0
    out = capsys.readouterr().out
    assert out.index(P_D["traceID"]) < out.index(MOVED["traceID"])
    assert D_LOCAL["traceID"] not in out
    assert "tags" not in jaeger.asked[0]


def test_nothing_found(jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str]) -> None:
    jaeger.found = []
    assert main(["--session", "none", "--jaeger", jaeger.url]) == 1
    assert "no turn of session none in the last 1h" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ((200, b"<html>"), "no Jaeger's"),
        ((500, b'{"data": null, "errors": [{"code": 500, "msg": "storage is full"}]}'), "storage is full"),
    ],
)
def test_a_jaeger_that_answers_badly(
    jaeger: FakeJaeger, capsys: pytest.CaptureFixture[str], broken: tuple[int, bytes], says: str
) -> None:
    jaeger.broken = broken
    assert main(["--slowest", "1", "--jaeger", jaeger.url]) == 1
    assert says in capsys.readouterr().err


def test_a_jaeger_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--slowest", "1", "--jaeger", "http://127.0.0.1:9"]) == 1
    assert "cannot be asked" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [[], ["abc", "--slowest", "1"], ["not-an-id"], ["--session", "a", "--slowest", "1"]]
)
def test_exactly_one_question(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("ppd trace: ")
