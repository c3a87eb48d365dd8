"""The live page: who sees its data, what its files are served with, and what the data says."""

import re
from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType

from controlplane import ui
from controlplane.ui import table
from controlplane.ui.guard import Guard
from controlplane.ui.turns import decision, quantiles, summary
from ppd.core import cells
from ppd.core.names import H_ADMIN, Outcome, Reason, Route
from ppd.core.records import TurnRecord
from ppd.core.seeds import load as load_seed
from ppd.core.table import Table
from tests.unit.controlplane.conftest import P_D, Stack, running

pytestmark = pytest.mark.unit
STATIC = Path(ui.__file__).parent / "static"
DATA = ("overview", "table?model=m&placement=1P1D", "history?model=m&placement=1P1D")


async def status_of(stack: Stack, path: str, **headers: str) -> int:
    async with stack.http.get(f"{stack.url}{path}", headers=headers) as answer:
        await answer.read()
        return answer.status


# --- who sees what ---


@pytest.mark.parametrize("data", DATA)
async def test_without_the_key_there_is_a_shell_and_nothing_else(data: str) -> None:
    async with running(P_D, admin_key="secret") as stack:
        assert await status_of(stack, "/ui") == 200
        assert await status_of(stack, f"/ui/data/{data}") == 403
        assert await status_of(stack, f"/ui/data/{data}", **{H_ADMIN: "wrong"}) == 403
        assert await status_of(stack, f"/ui/data/{data}", **{H_ADMIN: "secret"}) != 403


async def test_where_no_key_is_set_this_machine_sees_the_data(stack: Stack) -> None:
    assert await status_of(stack, "/ui/data/overview") == 200
    assert await status_of(stack, "/ui/data/overview", host="evil.example:8000") == 403
    assert await status_of(stack, "/ui/data/overview", **{"x-forwarded-for": "10.0.0.1"}) == 403


async def test_where_no_key_is_set_other_machines_see_nothing() -> None:
    async with running(P_D, host="0.0.0.0") as stack:
        assert await status_of(stack, "/ui/data/overview") == 403


@pytest.mark.parametrize(
    ("listens_on", "client", "host", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1", "localhost:8000", True),
        ("::1", "::1", "[::1]:8000", True),
        ("localhost", "127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.7", "localhost", False),
        ("10.0.0.1", "127.0.0.1", "localhost", False),
        ("127.0.0.1", "127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "127.0.0.1", "", False),
    ],
)
def test_only_loopback_is_this_machine(listens_on: str, client: str, host: str, allowed: bool) -> None:
    guard = Guard("", listens_on)
    if allowed:
        guard.check({b"host": host.encode()}, client)
    else:
        with pytest.raises(Exception, match="loopback"):
            guard.check({b"host": host.encode()}, client)


# --- files ---


async def test_files_come_with_a_strict_policy_and_are_not_sent_twice(stack: Stack) -> None:
    for name in [file.name for file in STATIC.iterdir()]:
        async with stack.http.get(f"{stack.url}/ui/{name}") as answer:
            assert answer.status == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            etag = answer.headers["etag"]
        assert await status_of(stack, f"/ui/{name}", **{"if-none-match": etag}) == 304


@pytest.mark.parametrize("name", ["nothing.js", "..%2fmount.py", "%2e%2e/mount.py", "static/main.js"])
async def test_there_are_no_other_files(stack: Stack, name: str) -> None:
    assert await status_of(stack, f"/ui/{name}") == 404


def test_the_page_loads_nothing_from_elsewhere_and_makes_no_html_of_strings() -> None:
    banned = r"(inner|outer|Adjacent)HTML|document\.write|eval\(|new Function|DOMParser|style=|onclick="
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.search(banned, text), file.name
        outside = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not outside, file.name
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / imported).is_file(), f"{file.name} imports {imported}"


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    full = digits if len(digits) == 6 else "".join(c * 2 for c in digits)
    parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(scheme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", (STATIC / "base.css").read_text(), re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", block))
    for text in ("ink", "soft", "good", "warn", "bad"):
        for ground in ("panel", "ground"):
            high, low = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{text} on {ground}"


# --- data ---


def turn(path: Route, ttft_ms: float | UnsetType, **fields: object) -> TurnRecord:
    given = {
        "request_id": "r",
        "ended_unix_s": 1.0,
        "model": "m",
        "placement": "1P1D",
        "reason": Reason.TABLE,
    }
    return TurnRecord(
        **(given | {"path": path, "ttft_ms": ttft_ms, "path_ttft_ms": ttft_ms and ttft_ms / 2} | fields)
    )  # type: ignore[arg-type]


def test_turns_are_summed_by_path() -> None:
    records = [
        turn(Route.P_D, 100.0, prefill_worker="p0", decode_worker="d0", kv_bytes=7),
        turn(Route.P_D, UNSET, outcome=Outcome.CANCELLED, prefill_worker="p0", decode_worker="d0"),
        turn(Route.D_LOCAL, 10.0, decode_worker="d0", cell="small/tiny@1", ended_unix_s=3.0),
    ]
    found = summary(records)
    assert (found["turns"], found["first_unix_s"], found["last_unix_s"]) == (3, 1.0, 3.0)
    assert found["paths"]["p-d"]["failed"] == 1
    assert found["paths"]["p-d"]["kv_bytes"] == 7
    assert found["paths"]["p-d"]["ttft_ms"] == {"p50": 100.0, "p95": 100.0, "n": 1}
    assert found["paths"]["p-d"]["path_ttft_ms"] == {"p50": 50.0, "p95": 50.0, "n": 1, "points": [50.0]}
    assert found["flows"] == [["p0", "d0", "p-d", 2], ["", "d0", "d-local", 1]]
    assert found["cells"] == {"small/tiny@1": 1}
    assert found["all"]["ttft_ms"]["n"] == 2
    assert summary([])["turns"] == 0
    assert summary([])["all"]["tpot_ms"] == {"p50": None, "p95": None, "n": 0}


def test_what_was_not_seen_is_null() -> None:
    shown = decision(turn(Route.P_D, UNSET))
    assert [shown[name] for name in ("ttft_ms", "path_ttft_ms", "tpot_ms", "n_out_tokens")] == [None] * 4


def test_quantiles_are_nearest_rank() -> None:
    assert quantiles(range(1, 102)) == {"p50": 51, "p95": 96, "n": 101}


def test_the_grid_says_of_every_cell_what_the_table_would_decide() -> None:
    known = Table(load_seed("h100-llama-3.1-8b-1P3D"))
    found = table.grid(known)
    assert len(found["cells"]) == cells.N_CELLS
    for name, (ttft, tpot, *limits) in found["classes"].items():
        assert limits == [0, 0]
        for slot, verdict in enumerate(known.verdicts(ttft, tpot)):
            score, source = found["verdicts"][name][slot]
            assert (score > 0) == (verdict.path is Route.D_LOCAL)
            assert source == verdict.row.source.slot
            assert {"p-d", "d-local"} <= found["cells"][source]["paths"].keys()
