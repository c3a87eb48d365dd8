"""Fenced blocks of the docs, and what becomes of each.

`sh` is run as it stands; `sh gpu` needs a GPU; what says `by=PATH`, `sh` or `python`, is run by that test or
script. Others are output, drawings or code.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(
    r"^\s*(ppd|curl|docker|docker-compose|make|pip|sudo|nats|kubectl|export) ", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    note: str  # what stands beside the language
    text: str

    @property
    def where(self) -> str:
        return f"docs/{self.page}:{self.line}"


def pages() -> list[str]:
    return sorted(file.name for file in DOCS.glob("*.md"))


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, _, note = match[1].strip().partition(" ")
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, language, note.strip(), match[2]))
    return found


def to_run(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh" and not block.note]
