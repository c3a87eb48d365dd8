"""What is shown while a stack starts and stops: a live table on a terminal, plain lines elsewhere."""

import json
import os
import sys
import time
from typing import IO, Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_PLAIN_EVERY_S = 10.0
_NOTE_CHARS = 100


class Progress(Protocol):
    """Steps have names; several may be under way at once."""

    def begin(self, step: str, waits_for: str) -> None: ...

    def note(self, step: str, text: str) -> None:
        """The latest sign of life of a step under way."""

    def end(self, step: str, ok: bool, text: str = "") -> None: ...

    def say(self, text: str) -> None:
        """Lines that stay."""

    def ready(self, text: str) -> None:
        """The stack serves; `text` says how to use it."""

    def close(self) -> None: ...


class _Step:
    def __init__(self, waits_for: str) -> None:
        self.waits_for = waits_for
        self.began_s = time.monotonic()
        self.note = ""
        self.took_s: float | None = None
        self.ok = True
        self.said_s = self.began_s
        self.spinner = Spinner("dots", style="cyan")

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s if self.took_s is None else self.took_s

    def end(self, ok: bool, text: str) -> None:
        self.took_s, self.ok, self.note = self.elapsed_s, ok, text


class PlainProgress:
    """A line when a step begins and ends, and every ten seconds in between."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._steps: dict[str, _Step] = {}

    def begin(self, step: str, waits_for: str) -> None:
        self._steps[step] = _Step(waits_for)
        self.say(f"{step}: waits until {waits_for}")

    def note(self, step: str, text: str) -> None:
        state = self._steps[step]
        if time.monotonic() - state.said_s > _PLAIN_EVERY_S:
            state.said_s = time.monotonic()
            waits = f"{step}: {state.elapsed_s:.0f} s, waits until {state.waits_for}"
            self.say(f"{waits}  {text[:_NOTE_CHARS]}".rstrip())

    def end(self, step: str, ok: bool, text: str = "") -> None:
        state = self._steps[step]
        state.end(ok, text)
        self.say(f"{step}: {'done' if ok else 'failed'} after {state.elapsed_s:.1f} s {text}".rstrip())

    def say(self, text: str) -> None:
        try:
            print(text, file=self._out, flush=True)
        except (OSError, ValueError):
            # A terminal that was closed must not keep the stack from stopping in order.
            self._out = open(os.devnull, "w")  # noqa: SIM115

    def ready(self, text: str) -> None:
        self.say(text)

    def close(self) -> None:
        """Nothing to put right."""


class RichProgress:
    """One row per step: its time, what it waits for, and the last line of its log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps: dict[str, _Step] = {}
        self._live: Live | None = None

    def begin(self, step: str, waits_for: str) -> None:
        self._steps[step] = _Step(waits_for)
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8, get_renderable=self._table)
            self._live.start()

    def note(self, step: str, text: str) -> None:
        self._steps[step].note = text

    def end(self, step: str, ok: bool, text: str = "") -> None:
        self._steps[step].end(ok, text)
        if self._live and all(state.took_s is not None for state in self._steps.values()):
            self.close()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column(no_wrap=True, min_width=10)
        table.add_column(justify="right", no_wrap=True, min_width=7)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, state in self._steps.items():
            mark: Text | Spinner = state.spinner
            what = Text(f"waits until {state.waits_for}")
            if state.note:
                what.append(f"  {state.note}", style="dim")
            if state.took_s is not None:
                mark = Text("✓", style="green") if state.ok else Text("✗", style="red")
                what = Text(state.note, style="dim" if state.ok else "red")
            table.add_row(mark, name, f"{state.elapsed_s:.1f} s", what)
        return table

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def ready(self, text: str) -> None:
        self.close()
        self.say("")
        self.say(text)

    def close(self) -> None:
        """Leave the finished rows on the screen and give the terminal back."""
        live, self._live = self._live, None
        if live:
            live.stop()
        self._steps.clear()


class PipeProgress:
    """For a stack in the background: to the terminal that waits for it, until ready; always to its log."""

    def __init__(self, fd: int, log: IO[str]) -> None:
        self._pipe: IO[str] | None = os.fdopen(fd, "w", buffering=1)
        self._plain = PlainProgress(log)

    def _send(self, *call: object) -> None:
        if self._pipe is None:
            return
        try:
            self._pipe.write(json.dumps(call) + "\n")
        except OSError:
            self._drop()

    def _drop(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass

    def begin(self, step: str, waits_for: str) -> None:
        self._plain.begin(step, waits_for)
        self._send("begin", step, waits_for)

    def note(self, step: str, text: str) -> None:
        self._plain.note(step, text)
        self._send("note", step, text)

    def end(self, step: str, ok: bool, text: str = "") -> None:
        self._plain.end(step, ok, text)
        self._send("end", step, ok, text)

    def say(self, text: str) -> None:
        self._plain.say(text)
        self._send("say", text)

    def ready(self, text: str) -> None:
        self._plain.ready(text)
        self._send("ready", text)
        self._drop()

    def close(self) -> None:
        self._drop()


def replay(line: str, progress: Progress) -> str:
    """Show one line that a PipeProgress sent; the name of the call."""
    name, *arguments = json.loads(line)
    getattr(progress, name)(*arguments)
    return str(name)


def for_terminal() -> Progress:
    """The one that fits standard output."""
    return RichProgress(Console()) if sys.stdout.isatty() else PlainProgress(sys.stdout)
