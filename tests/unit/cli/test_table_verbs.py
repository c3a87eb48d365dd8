"""What each verb of `ppd table` asks of the planner, shows, and exits with."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppd.cli import table
from ppd.cli.table import edits, explain, show, versions
from ppd.cli.table.ask import AWAY, REFUSED, AskError
from ppd.core import report, seeds
from ppd.core.records import encode

pytestmark = pytest.mark.unit

SEED = "h100-llama-3.1-8b-2P2D"
PUBLISHED = {"model": "m", "placement": "1P1D", "version": 7, "source": "told", "frozen": True}


class FakePlanner:
    """Keeps what it was asked, and answers by verb."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.error: AskError | None = None

    def __call__(self, _: Any, verb: str, request: dict[str, Any]) -> Any:
        if self.error is not None:
            raise self.error
        self.asked.append((verb, request))
        return self.answers.get(verb, PUBLISHED)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PPD_HOME", str(tmp_path / "home"))


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> FakePlanner:
    fake = FakePlanner()
    for module in (edits, explain, show, versions):
        monkeypatch.setattr(module, "ask", fake)
    return fake


@pytest.mark.parametrize(
    ("argv", "verb", "request_"),
    [
        (["set-weights", "batch", "1", "4.5"], "weights.set", {"slo_class": "batch", "ttft": 1, "tpot": 4.5}),
        (
            ["set-weights", "mine", "1", "0", "--tpot-limit-ms", "40"],
            "weights.set",
            {"slo_class": "mine", "ttft": 1, "tpot": 0, "tpot_limit_ms": 40},
        ),
        (["freeze"], "freeze", {}),
        (["unfreeze"], "unfreeze", {}),
        (["rollback", "3"], "rollback", {"version": 3}),
        (["rebuild"], "rebuild", {}),
    ],
)
def test_an_edit_asks_for_itself_and_says_the_new_version(
    planner: FakePlanner,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    verb: str,
    request_: dict[str, Any],
):
    assert table.main([*argv, "--model", "m", "--placement", "1P1D"]) == 0
    assert planner.asked == [(verb, {"model": "m", "placement": "1P1D"} | request_)]
    assert capsys.readouterr().out == "version 7 of m on 1P1D, frozen: told\n"


def test_rebuild_hands_over_a_profiles_table(planner: FakePlanner, tmp_path: Path):
    path = tmp_path / "table.json"
    path.write_bytes(encode(seeds.load(SEED)))
    assert table.main(["rebuild", "--table", str(path)]) == 0
    (_, request) = planner.asked[0]
    assert len(request["table"]["cells"]) == 180


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": "m", "placement": "1P1D", "version": 1}'])
def test_a_file_that_is_no_table_is_refused_before_anybody_is_asked(
    planner: FakePlanner, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
):
    path = tmp_path / "table.json"
    path.write_bytes(content)
    assert table.main(["rebuild", "--table", str(path)]) == REFUSED
    assert planner.asked == []
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("status", [AWAY, REFUSED])
@pytest.mark.parametrize("verb", ["show", "history", "diff", "explain", "freeze", "unfreeze", "rebuild"])
def test_what_the_planner_refuses_is_said_and_is_the_exit_status(
    planner: FakePlanner, capsys: pytest.CaptureFixture[str], verb: str, status: int
):
    planner.error = AskError("no such luck", status)
    assert table.main([verb]) == status
    captured = capsys.readouterr()
    assert captured.err == f"ppd table {verb}: no such luck\n"
    assert captured.out == ""


def test_history_draws_every_version_that_is_kept(planner: FakePlanner, tmp_path: Path):
    planner.answers = {
        "table.history": [{"version": 4}, {"version": 7}],
        "table.get": msgspec.to_builtins(seeds.load(SEED)),
    }
    assert table.main(["history", "--png", str(tmp_path / "t.png")]) == 0
    assert [request["version"] for verb, request in planner.asked if verb == "table.get"] == [4, 7]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert table.main(["history", "--png", str(tmp_path / "no" / "t.png")]) == AWAY


def test_nobody_at_the_address_is_said_within_seconds(capsys: pytest.CaptureFixture[str]):
    assert table.main(["history", "--nats", "nats://127.0.0.1:1"]) == AWAY
    assert "does not answer: TimeoutError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["set-weights", "batch", "1"],
        ["set-weights", "batch", "1", "--", "-1"],
        ["rollback"],
        ["rollback", "0"],
        ["explain", "--n-in", "many"],
        ["show", "--version", "x"],
    ],
)
def test_arguments_that_cannot_be_meant_exit_with_2(argv: list[str], planner: FakePlanner):
    with pytest.raises(SystemExit) as exit_:
        table.main(argv)
    assert exit_.value.code == 2
    assert planner.asked == []


@pytest.mark.parametrize("verb", [each.name for each in table.VERBS])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        table.main([verb, "--help"])
    assert exit_.value.code == 0
    assert f"usage: ppd table {verb}" in capsys.readouterr().out


def test_the_verbs_are_listed_and_an_unknown_one_is_not_guessed(capsys: pytest.CaptureFixture[str]):
    assert table.main([]) == 0
    listed = capsys.readouterr().out
    assert all(verb.name in listed for verb in table.VERBS)
    assert table.main(["shwo"]) == 2
    assert "no verb 'shwo'" in capsys.readouterr().err


def test_show_draws_what_serves_an_older_version_a_file_or_a_seed(
    planner: FakePlanner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    snapshot = seeds.load(SEED)
    planner.answers["table.get"] = msgspec.to_builtins(snapshot)
    assert table.main(["show", "--version", "4"]) == 0
    assert planner.asked == [("table.get", {"model": "", "placement": "", "version": 4})]
    served = capsys.readouterr().out
    path = tmp_path / "table.json"
    path.write_bytes(encode(snapshot))
    assert table.main(["show", "--file", str(path)]) == 0
    assert capsys.readouterr().out == served
    assert table.main(["show", "--seed", SEED]) == 0
    assert capsys.readouterr().out == served
    assert all(f"{name}: TTFT" in served for name in ("interactive", "balanced", "batch"))


def test_show_writes_json_and_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert table.main(["show", "--seed", SEED, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 180
    path = tmp_path / "t.html"
    assert table.main(["show", "--seed", SEED, "--html", str(path), "--slo", "batch"]) == 0
    assert "batch: TTFT" in path.read_text()
    assert "interactive: TTFT" not in path.read_text()
    assert table.main(["show", "--seed", SEED, "--html", str(tmp_path / "no" / "t.html")]) == AWAY


@pytest.mark.parametrize("argv", [["--seed", "nope"], ["--seed", SEED, "--slo", "nope"], ["--file", "/nope"]])
def test_show_says_what_there_is_instead(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert table.main(["show", *argv]) == REFUSED
    assert "nope" in capsys.readouterr().err


def test_explain_sends_the_load_only_where_some_is_given(planner: FakePlanner):
    planner.answers["explain"] = {
        "path": "d-local",
        "reason": "table",
        "score": 0.25,
        "expected": {"p-d": {"ttft_ms": 100.0, "tpot_ms": 9.0}},
        "cell": "large/mid_bal@1",
        "decided_by_cell": "large/mid_bal@1",
        "table_version": 3,
        "table_source": "a profile",
        "slo_class": "balanced",
        "weights": {"ttft": 1.0, "tpot": 1.0},
        "measured": {
            "p-d": {
                "ttft_ms": {"mean": 100.0, "sd": 5.0, "n": 12.0},
                "tpot_ms": {"mean": 9.0, "sd": 1.0, "n": 12.0},
                "provenance": "measured",
            }
        },
        "learned": None,
    }
    assert table.main(["explain", "--n-in", "64"]) == 0
    assert "decode" not in planner.asked[-1][1]
    assert planner.asked[-1][1]["n_in"] == 64
    assert table.main(["explain", "--d-running", "12"]) == 0
    decode = planner.asked[-1][1]["decode"]
    assert (decode["running"], decode["age_s"]) == (12, 0.0)


def test_explain_shows_path_reason_figures(planner: FakePlanner, capsys: pytest.CaptureFixture[str]):
    test_explain_sends_the_load_only_where_some_is_given(planner)
    out = capsys.readouterr().out
    assert "d-local: its own cell was measured" in out
    assert "100 ± 5" in out
    assert "score +0.250" in out


def test_diff_lists_verdicts_and_cuts_long_lists(planner: FakePlanner, capsys: pytest.CaptureFixture[str]):
    verdict = {
        "cell": "small/tiny@1",
        "slo_class": "batch",
        "from": "p-d",
        "to": "d-local",
        "score_from": -0.1,
        "score_to": 0.2,
    }
    figure = {"cell": "small/tiny@1", "path": "p-d", "ttft_ms": [None, 5.0], "tpot_ms": [9.0, 10.0]}
    planner.answers["table.diff"] = {
        "from": 3,
        "to": 5,
        "source_from": "seed",
        "source_to": "a profile",
        "weights_from": {},
        "weights_to": {"batch": [1, 8]},
        "verdicts": [verdict],
        "figures": [figure] * 50,
    }
    assert table.main(["diff", "3", "5"]) == 0
    assert planner.asked[-1][1] == {"model": "", "placement": "", "from": 3, "to": 5}
    out = capsys.readouterr().out
    assert "1 verdicts changed" in out
    assert "p-d -> d-local" in out
    assert "-0.100 -> +0.200" in out
    assert "new: 5" in out
    assert "and 10 more" in out
    table.main(["diff", "--all"])
    assert "more" not in capsys.readouterr().out


def test_report_needs_no_cluster(capsys: pytest.CaptureFixture[str]):
    assert table.main(["report"]) == 0
    assert capsys.readouterr().out == report.render(report.build())
    assert table.main(["report", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["different_winners"] == 92.2
    assert told["local_at_even_weights"]["2P2D"] == {"local": 178, "measured": 180}
