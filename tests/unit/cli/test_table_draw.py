"""The table in a terminal, as a page and as an image."""

import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ppd.cli.table import heat, page, plots, terminal, timeline
from ppd.core import seeds
from ppd.core.cells import QPS_LEVELS, Context
from ppd.core.records import TableSnapshot
from ppd.core.score import SLO_CLASSES, Weights
from ppd.core.table import Table

pytestmark = pytest.mark.unit

EVEN = {"even": Weights()}


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(seeds.load("h100-llama-3.1-8b-2P2D"))


def drawn(table: Table, classes: dict[str, Weights], width: int = 80) -> str:
    out = StringIO()
    terminal.draw(table, classes, Console(file=out, width=width))
    return out.getvalue()


def test_the_squares_say_what_the_verdicts_say(table: Table):
    found = list(heat.rows(table, Weights()))
    verdicts = table.verdicts(1.0, 1.0)
    squares = [square for row in found for square in row.squares]
    assert len(squares) == 180
    assert all(square.score == verdicts[square.cell.slot].score for square in squares)
    assert sum(square.local for square in squares) == 178
    assert heat.share(found) == "178 of 180 measured cells D-local"


def test_a_context_that_was_not_measured_is_left_out_and_said(table: Table):
    assert {row.context for row in heat.rows(table, Weights())} == {Context.SMALL, Context.LARGE}
    assert heat.left_out(table) == [Context.HUGE]
    assert "huge: nothing was measured" in drawn(table, EVEN)


def test_it_can_be_read_without_colours_and_fits_80_columns(table: Table):
    lines = drawn(table, EVEN).splitlines()
    assert max(len(line) for line in lines) <= 80
    tiny = next(line for line in lines if line.startswith("tiny"))
    assert len(tiny.split()) == 2 + len(QPS_LEVELS)
    assert all(word[0] in "DP" for word in tiny.split()[2:])


def test_what_was_not_measured_is_in_lower_case(table: Table):
    one = table.snapshot.cells[0]
    partial = Table(TableSnapshot(model="m", placement="2P2D", version=1, cells=[one]))
    labels = [square.label for row in heat.rows(partial, Weights()) for square in row.squares]
    assert sum(label[0].isupper() for label in labels) == 1
    assert len(labels) == 90


def test_a_stronger_score_has_a_stronger_colour_and_weights_move_it(table: Table):
    squares = [square for row in heat.rows(table, Weights()) for square in row.squares]
    weak, strong = min(squares, key=lambda s: abs(s.score)), max(squares, key=lambda s: s.score)
    assert weak.strength < strong.strength
    costly = [s for row in heat.rows(table, Weights(ttft=0.0, tpot=1.0)) for s in row.squares]
    assert sum(s.local for s in costly) < sum(s.local for s in squares)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tips: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tips += [value or "" for name, value in attrs if name == "title"]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_each_square_tells_its_story(table: Table):
    tags = Tags()
    text = page.whole(table, dict(SLO_CLASSES))
    tags.feed(text)
    assert tags.open == []
    assert len(tags.tips) == 3 * 180
    assert any("small/tiny@0.5: D-local" in tip and "p-d: TTFT" in tip for tip in tags.tips)
    assert "http" not in text  # it needs no network


def test_names_from_a_table_cannot_break_the_page():
    snapshot = seeds.load("h100-llama-3.1-8b-2P2D")
    snapshot.model, snapshot.source = "<script>m", "</h1><b>"
    text = page.whole(Table(snapshot), {"<i>": Weights()})
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<i>" not in text


def test_the_image_is_one(table: Table, tmp_path: Path):
    path = tmp_path / "t.png"
    plots.heat_png(table, dict(SLO_CLASSES), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def learned(table: Table) -> list[Table]:
    """Three versions: the seed's, one cell's TPOT on D doubled, and that again with a class of its own."""
    cells = table.snapshot.cells
    there = cells[0].paths["d-local"]
    slower = msgspec.structs.replace(
        there, tpot_ms=msgspec.structs.replace(there.tpot_ms, mean=9 * there.tpot_ms.mean)
    )
    changed = msgspec.structs.replace(cells[0], paths=cells[0].paths | {"d-local": slower})
    second = msgspec.structs.replace(
        table.snapshot, version=2, created_unix_s=60.0, cells=[changed, *cells[1:]], source="online: changed"
    )
    third = msgspec.structs.replace(
        second, version=3, created_unix_s=120.0, weights={"mine": (0.0, 1.0)}, source="weights of mine"
    )
    return [table, Table(second), Table(third)]


def test_the_timeline_says_what_changed_and_where(table: Table):
    versions = learned(table)
    cell = table.snapshot.cells[0]
    assert [str(each) for each in timeline.moved(versions)] == [f"{cell.context}/{cell.ratio}@{cell.qps:g}"]
    shares = timeline.local_shares(versions)
    assert shares["balanced"] == [178 / 180, 177 / 180, 177 / 180]
    assert set(shares) == {*SLO_CLASSES, "mine"}
    assert timeline.moved([table]) == []


def test_the_timeline_can_be_drawn_of_one_version_and_of_many(table: Table, tmp_path: Path):
    for versions in ([table], learned(table)):
        path = tmp_path / f"{len(versions)}.png"
        timeline.png(versions, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_how_to_get_it(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.NoPlotsError, match=r"ppd\[plots\]"):
        plots.heat_png(table, EVEN, tmp_path / "t.png")
