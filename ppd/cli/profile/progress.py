"""What a person sees while a profile runs: a bar with the time left, and a line per point."""

from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from planner.profile.records import Point
from planner.profile.run import Progress


class _Left(ProgressColumn):
    """The time left, running down between two reports."""

    def render(self, task: Task) -> Text:
        ends_s = task.fields["ends_s"]
        return Text("" if ends_s is None else f"left {clock(max(0.0, ends_s - (task.elapsed or 0.0)))}")


class ProgressWatch:
    """A context manager; call it with each Progress. Without a terminal only the lines are written."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            _Left(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "ProgressWatch":
        self._bar.start()
        self._task = self._bar.add_task("starting", total=None, ends_s=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, seen: Progress) -> None:
        if seen.point is not None:
            self._console.print(line(seen.point), highlight=False)
        if self._task is not None and seen.left_s is not None:
            self._bar.update(
                self._task,
                description=seen.doing,
                completed=seen.spent_s,
                total=seen.spent_s + seen.left_s,
                ends_s=seen.spent_s + seen.left_s,
            )


def line(point: Point) -> str:
    good = [sample for sample in point.samples if sample.ok]
    head = f"{point.cell:<24} {point.path:<13} {point.rate:6.2f}/s"
    if good:
        ttft, tpot = fmean(s.ttft_ms for s in good), fmean(s.tpot_ms for s in good)
        head += f"  TTFT {ttft:8.1f} ms  TPOT {tpot:7.2f} ms"
    head += f"  {len(good)} of {len(point.samples)} turns in {point.seconds:.0f} s"
    if point.flag is None:
        return head
    why = next((sample.error for sample in point.samples if not sample.ok), f"grew × {point.growth:g}")
    return f"{head}  [{point.flag}: {why}]".replace("[", "\\[")


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
