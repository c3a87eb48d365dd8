"""A turn as a waterfall of its spans."""

from collections.abc import Sequence
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ppd.cli.trace.tree import FRONTEND, PHASES, Span, TracedTurn, phases
from ppd.core import names

_COLOURS = {
    "route": "magenta",
    "prefill": "blue",
    "KV transfer": "yellow",
    "decode": "green",
    FRONTEND: "cyan",
}
_EIGHTHS = "▏▎▍▌▋▊▉█"
_NAME_WIDTH = 30
_NOTE_WIDTH = 44


def ms(us: float) -> str:
    return f"{us / 1e3:,.1f} ms"


def size(count: float) -> str:
    """Bytes in decimal units, as bandwidths are given."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def bar(start: float, length: float, width: int) -> str:
    """A bar from `start` over `length`, both shares of the whole, in `width` characters; never invisible."""
    first = min(int(start * width), width - 1)
    eighths = max(1, round(min(length * width, width - first) * 8))
    full, rest = divmod(eighths, 8)
    return (" " * first + "█" * full + (_EIGHTHS[rest - 1] if rest else ""))[:width].ljust(width)


def draw(turn: TracedTurn, console: Console) -> None:
    """Print one turn: what it was, its spans, its transfers, and where the time went."""
    width = max(16, min(60, console.width - _NAME_WIDTH - _NOTE_WIDTH - 16))
    parts: list[RenderableType] = [
        Text.assemble((turn.trace_id, "bold"), "  ", _title(turn)),
        _waterfall(turn, width),
    ]
    if turn.transfers:
        parts.append(_transfers(turn.transfers))
    parts += [_where(turn), Text("")]
    console.print(Group(*parts))


def list_turns(turns: Sequence[TracedTurn], console: Console) -> None:
    """One line a turn."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("began", "time", "route", "turn", "KV moved", "trace"):
        table.add_column(
            column, justify="right" if column in ("time", "turn", "KV moved") else "left", no_wrap=True
        )
    for turn in turns:
        tags = turn.root.tags
        began = datetime.fromtimestamp(turn.root.start_us / 1e6).strftime("%H:%M:%S")
        route = f"{tags.get('ppd.path', '?')} ({tags.get('ppd.reason', '?')})"
        moved = size(turn.kv_bytes) if turn.transfers else "-"
        style = "red" if turn.root.error else ""
        table.add_row(
            began,
            ms(turn.root.duration_us),
            route,
            str(tags.get("ppd.turn", "?")),
            moved,
            turn.trace_id,
            style=style,
        )
    console.print(table)


def _title(turn: TracedTurn) -> str:
    tags = turn.root.tags
    known = (
        ("", "ppd.path"),
        ("because ", "ppd.reason"),
        ("turn ", "ppd.turn"),
        ("of session ", "ppd.session"),
        ("model ", "gen_ai.request.model"),
        ("class ", "ppd.slo_class"),
        ("outcome ", "ppd.outcome"),
    )
    words = [f"{label}{tags[key]}" for label, key in known if tags.get(key) not in (None, "")]
    return ", ".join(words + [f"after {trace_id}" for trace_id in turn.root.links])


def _waterfall(turn: TracedTurn, width: int) -> Table:
    begin, whole = turn.start_us, max(1, turn.end_us - turn.start_us)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=_NAME_WIDTH, no_wrap=True)
    table.add_column(width=width, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(max_width=_NOTE_WIDTH)
    for depth, span in turn.spans():
        colour = "red" if span.error else _COLOURS[PHASES.get(span.name, FRONTEND)]
        table.add_row(
            Text("  " * depth + span.name),
            Text(bar((span.start_us - begin) / whole, span.duration_us / whole, width), style=colour),
            ms(span.duration_us),
            Text(_note(span), style="red" if span.error else "dim"),
        )
        for at_us, event in span.events:
            table.add_row(
                Text("  " * (depth + 1) + event, style="dim"),
                Text(" " * min(int((at_us - begin) / whole * width), width - 1) + "◆", style=colour),
                f"at {ms(at_us - begin)}",
                "",
            )
    return table


def _note(span: Span) -> str:
    if span.error:
        return span.error
    if span.name == names.SPAN_KV_TRANSFER:
        return (
            f"{size(int(span.tags.get('kv.bytes', 0)))} at {float(span.tags.get('kv.gb_per_s', 0)):.2f} GB/s"
        )
    if span.name == names.SPAN_ROUTE:
        cell = span.tags.get("ppd.cell")
        return f"{span.tags.get('ppd.reason', '')}" + (f", cell {cell}" if cell else "")
    return str(span.tags.get("ppd.worker") or span.service)


def _transfers(transfers: list[Span]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="KV transfers", title_justify="left")
    for column in ("from → to", "moved", "blocks", "cached blocks", "waited", "read", "GB/s"):
        table.add_column(column, justify="left" if "→" in column else "right", no_wrap=True)
    for span in transfers:
        tags = span.tags
        table.add_row(
            f"{tags.get('kv.source.worker_id') or '?'} → {tags.get('kv.destination.worker_id') or '?'}",
            size(int(tags.get("kv.bytes", 0))),
            str(tags.get("kv.blocks", "?")),
            str(tags.get("kv.cached_blocks", "?")),
            ms(float(tags.get("kv.wait_s", 0)) * 1e6),
            ms(float(tags.get("kv.transfer_s", 0)) * 1e6),
            f"{float(tags.get('kv.gb_per_s', 0)):.2f}",
            style="red" if span.error else "",
        )
    return table


def _where(turn: TracedTurn) -> Text:
    spent = sorted(phases(turn).items(), key=lambda item: -item[1])
    whole = max(1, turn.root.duration_us)
    text = Text("where the time went: ")
    for i, (phase, us) in enumerate(spent):
        text.append(", " if i else "")
        text.append(phase, style=_COLOURS[phase])
        text.append(f" {ms(us)} ({us / whole:.0%})")
    return text
