"""A turn's tree and times from answers in the form that Jaeger's query API gives."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ppd.cli.trace.draw import bar, draw, list_turns, size
from ppd.cli.trace.jaeger import JaegerTrace
from ppd.cli.trace.tree import TracedTurn, build, phases

pytestmark = pytest.mark.unit
ANSWERS = Path(__file__).parent / "trace_answers"


def turn(name: str) -> TracedTurn:
    data = msgspec.json.decode((ANSWERS / f"{name}.json").read_bytes())["data"]
    return build(msgspec.convert(data[0], JaegerTrace))


def drawn(*turns: TracedTurn, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    if len(turns) > 1:
        list_turns(turns, console)
    for each in turns:
        draw(each, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_spans_become_a_tree_in_the_order_of_the_turn() -> None:
    names = [(depth, span.name) for depth, span in turn("p_d").spans()]
    assert names == [
        (0, "POST /v1/chat/completions"),
        (1, "ppd.route"),
        (1, "ppd.prefill"),
        (2, "llm_request"),
        (1, "ppd.decode"),
        (2, "llm_request"),
        (2, "kv.transfer"),
    ]


@pytest.mark.parametrize("name", ["p_d", "moved", "d_local"])
def test_phases_add_up_to_the_turn(name: str) -> None:
    found = turn(name)
    assert sum(phases(found).values()) == found.root.duration_us


def test_each_moment_belongs_to_the_innermost_span() -> None:
    spent = phases(turn("p_d"))
    assert spent["KV transfer"] == 5200
    assert spent["prefill"] == 78_000
    assert spent["decode"] == 1_820_500 - 5200
    assert spent["route"] == 150


def test_a_span_of_another_clock_is_cut_to_the_turn() -> None:
    found = turn("p_d")
    found.transfers[0].start_us = found.root.end_us - 100
    spent = phases(found)
    assert spent["KV transfer"] == 100
    assert sum(spent.values()) == found.root.duration_us


def test_what_a_transfer_moved_and_how_fast_is_shown() -> None:
    text = drawn(turn("p_d"))
    assert "44.6 MB at 15.92 GB/s" in text
    assert "p0-1f00aa31 → d1-9c41ab20" in text
    assert "497" in text  # cached blocks, not moved
    assert "p-d, because table, turn 3, of session s-41c7" in text
    assert "large/7/4.0" in text
    assert "first token" in text
    assert "decode 1,815.3 ms (96%)" in text


def test_a_failed_transfer_says_why_and_lost_spans_are_still_drawn() -> None:
    found = turn("moved")
    text = drawn(found)
    assert "source-gone: e-p0 closed the" in text
    assert "EngineFailedError: d0: connection" in text
    assert [span.name for span in found.orphans] == ["llm_request"]
    assert text.count("ppd.route") == 2


def test_a_turn_without_a_transfer_has_no_table_of_them() -> None:
    assert "KV transfers" not in drawn(turn("d_local"))


def test_several_turns_are_listed_first() -> None:
    lines = drawn(turn("p_d"), turn("d_local")).splitlines()
    listed = [line for line in lines[:6] if "(table)" in line]
    assert ["p-d" in line for line in listed] == [True, False]
    assert "44.6 MB" in listed[0]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_any_terminal(width: int) -> None:
    assert max(map(len, drawn(turn("p_d"), width=width).splitlines())) <= width


@pytest.mark.parametrize(
    ("start", "length", "shown"), [(0, 1, "██████████"), (0.5, 0.25, "     ██▌  "), (0.99, 0, "         ▏")]
)
def test_a_bar_starts_where_the_span_does_and_is_never_invisible(
    start: float, length: float, shown: str
) -> None:
    assert bar(start, length, 10) == shown


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (44_564_480, "44.6 MB"), (3e12, "3000.0 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


def test_a_trace_without_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="no spans"):
        build(JaegerTrace("ab"))


def test_a_turn_names_the_one_before_it() -> None:
    """A link is a reference of another kind: it makes no parent."""
    data = msgspec.json.decode((ANSWERS / "p_d.json").read_bytes())["data"][0]
    root = next(span for span in data["spans"] if not span["references"])
    root["references"] = [{"refType": "FOLLOWS_FROM", "traceID": "f" * 32, "spanID": "e" * 16}]
    found = build(msgspec.convert(data, JaegerTrace))
    assert found.root.name == "POST /v1/chat/completions"
    assert found.orphans == []
    assert f"after {'f' * 32}" in drawn(found, width=300)
    assert "after" not in drawn(turn("p_d"), width=300)
