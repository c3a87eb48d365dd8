import io
import os

import pytest
from rich.console import Console

from ppd.cli.stack import progress as progress_module
from ppd.cli.stack.progress import PipeProgress, PlainProgress, Progress, RichProgress, replay

pytestmark = pytest.mark.unit


def _one_run(progress: Progress) -> None:
    progress.begin("etcd", "it answers")
    progress.begin("p0", "its engine is ready")
    progress.note("p0", "loading weights")
    progress.end("etcd", True)
    progress.say("a line")
    progress.end("p0", False, "exited with status 1")


def test_plain_lines_say_what_is_waited_for_and_how_it_ended() -> None:
    out = io.StringIO()
    _one_run(PlainProgress(out))
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["etcd: waits until it answers", "p0: waits until its engine is ready"]
    assert lines[2].startswith("etcd: done after 0.0 s")
    assert lines[3] == "a line"
    assert lines[4] == "p0: failed after 0.0 s exited with status 1"


def test_plain_lines_say_now_and_then_what_a_long_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_PLAIN_EVERY_S", 0.0)
    out = io.StringIO()
    progress = PlainProgress(out)
    progress.begin("p0", "its engine is ready")
    progress.note("p0", "loading weights " + "x" * 1000)
    line = out.getvalue().splitlines()[1]
    assert line.startswith("p0: 0 s, waits until its engine is ready  loading weights xxx")
    assert len(line) < 200


def test_a_terminal_that_was_closed_is_no_error() -> None:
    out = io.StringIO()
    progress = PlainProgress(out)
    progress.begin("etcd", "it answers")
    out.close()
    progress.end("etcd", True)
    progress.say("nobody reads this")


def test_rich_rows_show_each_step_once_with_its_end() -> None:
    out = io.StringIO()
    progress = RichProgress(Console(file=out, width=100))
    _one_run(progress)
    progress.close()
    rows = [line for line in out.getvalue().splitlines() if line.strip()]
    assert [row.split()[:2] for row in rows if row[0] in "✓✗"] == [["✓", "etcd"], ["✗", "p0"]]
    assert "exited with status 1" in rows[-1]


def test_what_goes_through_the_pipe_is_shown_as_if_it_were_here() -> None:
    read_fd, write_fd = os.pipe()
    log, direct, replayed = io.StringIO(), io.StringIO(), io.StringIO()
    progress = PipeProgress(write_fd, log)
    _one_run(progress)
    progress.ready("it serves")
    progress.say("after that only the log hears of it")
    shown = PlainProgress(replayed)
    with os.fdopen(read_fd) as events:
        calls = [replay(line, shown) for line in events]
    _one_run(PlainProgress(direct))
    assert calls[-1] == "ready"
    assert replayed.getvalue() == direct.getvalue() + "it serves\n"
    assert log.getvalue() == replayed.getvalue() + "after that only the log hears of it\n"


def test_a_reader_of_the_pipe_that_died_does_not_stop_the_stack() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    log = io.StringIO()
    _one_run(PipeProgress(write_fd, log))
    assert "p0: failed" in log.getvalue()
