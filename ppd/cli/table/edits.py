"""`ppd table set-weights|freeze|unfreeze|rollback|rebuild`: each publishes a new version, and says which."""

from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field
from pydantic_settings import CliPositionalArg

from ppd.cli.table.ask import REFUSED, AskError, ask, says_errors
from ppd.cli.table.where import TableSettings, read
from ppd.core.records import BadRecordError, TableSnapshot, decode
from ppd.core.table import Table, TableError


class SetWeightsSettings(TableSettings):
    """Set how much an SLO class cares for TTFT and for TPOT. New names make new classes.

    A turn stays on its D where TTFT * (share of TTFT saved) > TPOT * (share of TPOT added). Of two paths the
    one that keeps the class's limits is taken, whatever the score.
    """

    slo_class: CliPositionalArg[str] = Field(description="such as interactive, balanced, batch")
    ttft: CliPositionalArg[float] = Field(ge=0, description="weight of TTFT")
    tpot: CliPositionalArg[float] = Field(ge=0, description="weight of TPOT")
    ttft_limit_ms: float | None = Field(None, ge=0, description="TTFT to keep to; 0: none")
    tpot_limit_ms: float | None = Field(None, ge=0, description="TPOT to keep to; 0: none")


class FreezeSettings(TableSettings):
    """Keep the table as it is: the online loop learns on, but publishes nothing until `unfreeze`."""


class UnfreezeSettings(TableSettings):
    """Let the online loop publish what it has learned, in the meantime too."""


class RollbackSettings(TableSettings):
    """Publish an older version again, and freeze it. `ppd table history` lists what is kept."""

    version: CliPositionalArg[int] = Field(ge=1, description="the version to go back to")


class RebuildSettings(TableSettings):
    """Start anew from a table that `ppd profile` wrote, or from the nearest seed.

    What was learned online is dropped: it was relative to other figures.
    """

    table: Path | None = Field(None, description="a profile's table.json; without it, the nearest seed")


@says_errors("ppd table set-weights")
def set_weights(argv: list[str]) -> int:
    settings = read(SetWeightsSettings, argv, "ppd table set-weights")
    names = {"slo_class", "ttft", "tpot", "ttft_limit_ms", "tpot_limit_ms"}
    given = settings.model_dump(include=names, exclude_none=True)
    return _published(ask(settings, "weights.set", settings.which() | given))


@says_errors("ppd table freeze")
def freeze(argv: list[str]) -> int:
    settings = read(FreezeSettings, argv, "ppd table freeze")
    return _published(ask(settings, "freeze", settings.which()))


@says_errors("ppd table unfreeze")
def unfreeze(argv: list[str]) -> int:
    settings = read(UnfreezeSettings, argv, "ppd table unfreeze")
    return _published(ask(settings, "unfreeze", settings.which()))


@says_errors("ppd table rollback")
def rollback(argv: list[str]) -> int:
    settings = read(RollbackSettings, argv, "ppd table rollback")
    return _published(ask(settings, "rollback", settings.which() | {"version": settings.version}))


@says_errors("ppd table rebuild")
def rebuild(argv: list[str]) -> int:
    settings = read(RebuildSettings, argv, "ppd table rebuild")
    request = settings.which()
    if settings.table is not None:
        request["table"] = msgspec.to_builtins(read_table(settings.table))
    return _published(ask(settings, "rebuild", request))


def read_table(path: Path) -> TableSnapshot:
    """A table file. Raises AskError if it is none that can serve."""
    try:
        snapshot = decode(path.read_bytes(), TableSnapshot)
        Table(snapshot)
    except (OSError, BadRecordError, TableError) as error:
        raise AskError(f"{path}: {error}", REFUSED) from error
    return snapshot


def _published(answer: dict[str, Any]) -> int:
    which = f"{answer['model']} on {answer['placement']}"
    state = ", frozen" if answer["frozen"] else ""
    print(f"version {answer['version']} of {which}{state}: {answer['source']}")
    return 0
