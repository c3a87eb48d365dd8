"""A report as one HTML file: tables, and plots as images inside it."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:68rem;margin:2rem auto;padding:0 1rem}
body{color:#1c2330;background:#fff}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.25rem .7rem;border-bottom:1px solid #d8dde6;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}p{max-width:46rem}
.over{overflow-x:auto}
@media(prefers-color-scheme:dark){body{color:#dde3ee;background:#14181f}td,th{border-color:#323a47}img{background:#fff}}
"""


class Page:
    """Built from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        def row(cells: Sequence[object], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(str(c))}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in rows)
        self._parts.append(f'<div class="over"><table>{row(head, "th")}{body}</table></div>')

    def figure(self, figure: Any, alt: str) -> None:
        """A matplotlib figure."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        data = base64.b64encode(buffer.getvalue()).decode()
        self._parts.append(f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">')

    def html(self) -> str:
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style>{''.join(self._parts)}</html>\n"
        )
