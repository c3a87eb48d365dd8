"""Results for a person: one line of what was seen, and where need be one of what to do."""

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from ppd.cli.doctor.findings import Check, Report, Result, Status

_STYLE = {
    Status.OK: "green",
    Status.WARN: "yellow",
    Status.FAILED: "bold red",
    Status.NOT_APPLICABLE: "dim",
}
_LABEL = {Status.OK: "ok", Status.WARN: "warn", Status.FAILED: "FAILED", Status.NOT_APPLICABLE: "-"}
_WIDTH = 6


class Show:
    """Prints each result when it is there; on a terminal also what is being waited for."""

    def __init__(self, console: Console, names: list[str]) -> None:
        self._console = console
        self._name_width = max(map(len, names), default=0)
        self._spinner: Spinner | None = None

    def begin(self, check: Check) -> None:
        if self._console.is_terminal:
            self._spinner = self._console.status(f"{check.name}: waits until {check.waits_for}")
            self._spinner.start()

    def end(self, result: Result) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
        style = _STYLE[result.status]
        line = Text(f"{_LABEL[result.status]:<{_WIDTH}}  ", style=style)
        line.append(f"{result.check:<{self._name_width}}  ", style="dim" if style == "dim" else "bold")
        line.append(result.seen, style="dim" if style == "dim" else "")
        self._print(line)
        if result.do:
            self._print(Text(f"{'':<{_WIDTH + self._name_width + 4}}→ {result.do}", style=style))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)

    def close(self, report: Report) -> None:
        count = {status: sum(result.status is status for result in report.results) for status in Status}
        backend = "on GPUs" if report.backend == "cuda" else "on the CPU"
        self._print(
            Text(
                f"\n{count[Status.FAILED]} failed, {count[Status.WARN]} warnings, {count[Status.OK]} ok,"
                f" {count[Status.NOT_APPLICABLE]} not applicable; engines {backend}"
            )
        )
