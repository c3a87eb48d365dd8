"""`ppd profile`: its flags, what it writes, and what it says when it cannot."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from planner.profile.journal import Journal
from planner.profile.records import Flag, Head, Point, Speeds, TurnSample
from ppd.cli.profile import command, main, progress
from ppd.cli.profile.settings import ProfileSettings
from ppd.cli.table import plots
from ppd.core.names import Route
from ppd.core.records import TableSnapshot, decode
from ppd.core.table import Table
from ppd.runtime.settings import load
from tests.unit.planner.profiles import pair, point

pytestmark = pytest.mark.unit

HEAD = Head(model="m", placement="1P1D", hardware="<h>", turns=2)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PPD_HOME", str(tmp_path / "home"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a journal of two cells and a failed point."""
    journal = Journal(tmp_path / "out" / "journal.jsonl")
    journal.begin(HEAD)
    journal.add(Speeds(prefill_tokens_per_s=900.0, decode_tokens_per_s=100.0, step_ms=40.0, streams=8))
    failed = Point(
        cell="small/tiny@4",
        path=Route.P_D,
        rate=4.0,
        samples=(TurnSample(turn=2, error="<503>"),),
        seconds=1.0,
        flag=Flag.FAILED,
    )
    for each in (
        *pair("small/tiny@0.5", (90.0, 40.0), rate=0.2),
        *pair("small/mid_bal@1", (99.0, 50.0)),
        failed,
    ):
        journal.add(each)
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("argv", "seconds"),
    [([], None), (["--budget", "10m"], 600.0), (["--budget", "1.5h"], 5400.0), (["--quick"], 120.0)],
)
def test_budgets(argv: list[str], seconds: float | None):
    assert load(ProfileSettings, argv, "ppd profile").budget_s == seconds


@pytest.mark.parametrize(
    "argv", [["--budget", "10"], ["--budget", "soon"], ["--levels", "3"], ["--turns", "1"]]
)
def test_flags_that_cannot_be_meant_exit_with_2(argv: list[str]):
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2


def test_no_frontend_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["--frontend", "http://127.0.0.1:1", "--out", str(tmp_path / "p")]) == 1
    assert "ppd profile: no frontend answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_report_is_made_from_the_journal_alone(out: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--report-only", "--out", str(out)]) == 0
    assert "2 cells, 40 turns" in capsys.readouterr().out
    snapshot = decode((out / "table.json").read_bytes(), TableSnapshot)
    assert len(Table(snapshot).snapshot.cells) == 2
    page = (out / "report.html").read_text()
    assert "<td>90.0 ± " in page
    assert "&lt;503&gt;" in page
    assert "&lt;h&gt;" in page
    assert "measured at what it sustains: 0.2 to 0.2 a second" in page
    assert not list(out.glob("*.new"))


def test_the_report_has_plots_where_they_can_be_drawn(out: Path):
    main(["--report-only", "--out", str(out)])
    assert "<svg" in (out / "report.html").read_text()


def test_the_report_says_how_to_get_plots(out: Path, monkeypatch: pytest.MonkeyPatch):
    def missing() -> None:
        raise plots.NoPlotsError(plots.HOW)

    monkeypatch.setattr(plots, "pyplot", missing)
    assert main(["--report-only", "--out", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "<svg" not in page
    assert "ppd[plots]" in page


def test_an_empty_folder_has_nothing_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--report-only", "--out", str(tmp_path / "none")]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_publishing_hands_the_table_over_and_waits_until_it_serves(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[object] = []

    def ask(_: object, verb: str, request: dict[str, object]) -> dict[str, object]:
        asked.append((verb, msgspec.convert(request["table"], TableSnapshot).model))
        return {"version": 9}

    async def serving(_: str, model: str, version: int) -> command.MeasuredCluster:
        return command.MeasuredCluster(model, "1P1D", 0, version - 1)

    monkeypatch.setattr(command, "ask", ask)
    monkeypatch.setattr(command, "_serving", serving)
    assert main(["--report-only", "--out", str(out), "--publish"]) == 1
    assert asked == [("rebuild", "m")]
    assert "still serves by version 8" in capsys.readouterr().err


def test_a_points_line_says_what_was_measured_and_what_went_wrong():
    line = progress.line(point("small/tiny@4", Route.D_LOCAL, 50.0))
    assert "small/tiny@4" in line
    assert "10 of 10 turns" in line
    flagged = progress.line(point("small/tiny@4", Route.D_LOCAL, 50.0, flag=Flag.SATURATED))
    assert "saturated: grew × 1" in flagged
    console = Console(record=True, width=200)
    console.print(flagged, highlight=False)
    assert "[saturated" in console.export_text()  # not taken for markup


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (125, "2:05"), (3700, "61:40")])
def test_time_left(seconds: float, text: str):
    assert progress.clock(seconds) == text
