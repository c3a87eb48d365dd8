"""`ppd key new|list|revoke`: edits the file that `ppd frontend --keys FILE` reads, and reads again."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from ppd.runtime import keys
from ppd.runtime.keys import NAME, SLO, KeyFileError
from ppd.runtime.settings import CommandSettings, load


class KeySettings(CommandSettings):
    """Which file."""

    keys: Path = Field(Path("keys.json"), description="the file of keys; PPD_KEYS for all commands")


class NewSettings(KeySettings):
    """Make a key and print it: this once, for the file holds its hash only. A limit of 0 is none."""

    name: CliPositionalArg[str] = Field(pattern=NAME, description="whose key it is")
    slo: str = Field(
        "", pattern=SLO, description="SLO class of its requests; empty: theirs, else the frontend's"
    )
    requests_per_min: int = Field(0, ge=0, description="requests in any 60 seconds")
    max_concurrent: int = Field(0, ge=0, description="requests at once")
    max_tokens: int = Field(0, ge=0, description="longest answer")


class ListSettings(KeySettings):
    """The keys of the file, without what would let one use them."""

    json_: bool = Field(False, alias="json", description="as JSON")


class RevokeSettings(KeySettings):
    """Take a key away: running frontends refuse it within a second."""

    name: CliPositionalArg[str] = Field(description="whose key it is")


def new(argv: list[str]) -> None:
    settings = load(NewSettings, argv, "ppd key new")
    with keys.editing(settings.keys) as listed:
        key = keys.add(
            listed,
            settings.name,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            slo=settings.slo,
            requests_per_min=settings.requests_per_min,
            max_concurrent=settings.max_concurrent,
            max_tokens=settings.max_tokens,
        )
    print(key)


def list_(argv: list[str]) -> None:
    settings = load(ListSettings, argv, "ppd key list")
    rows = [
        (key.name, key.id, key.slo, key.requests_per_min, key.max_concurrent, key.max_tokens, key.created)
        for key in keys.read(settings.keys)
    ]
    columns = ("name", "id", "slo", "requests_per_min", "max_concurrent", "max_tokens", "created")
    if settings.json_:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1))
        return
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("name", "id", "SLO", "req/min", "at once", "tokens", "created"):
        grid.add_column(column)
    for *row, created in rows:
        grid.add_row(*(str(value) if value else "-" for value in row), created[:10])
    Console(soft_wrap=True).print(grid)


def revoke(argv: list[str]) -> None:
    settings = load(RevokeSettings, argv, "ppd key revoke")
    if not settings.keys.exists():
        raise KeyFileError(f"{settings.keys}: there is no such file")
    with keys.editing(settings.keys) as listed:
        kept = [key for key in listed if key.name != settings.name]
        if len(kept) == len(listed):
            raise KeyFileError(f"{settings.keys}: there is no key named {settings.name!r}")
        listed[:] = kept


VERBS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "new": (new, "make a key and print it, this once"),
    "list": (list_, "the keys, their SLO classes and limits"),
    "revoke": (revoke, "take a key away"),
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: ppd key VERB [options]        (ppd key VERB --help shows its options)\n")
        print("\n".join(f"  {name:<8} {summary}" for name, (_, summary) in VERBS.items()))
        return 0
    if argv[0] not in VERBS:
        print(f"ppd key: there is no verb {argv[0]!r}; there are {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        VERBS[argv[0]][0](argv[1:])
    except KeyFileError as error:
        print(f"ppd key: {error}", file=sys.stderr)
        return 2
    return 0
