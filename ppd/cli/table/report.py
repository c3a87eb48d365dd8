"""`ppd table report`: the paper's tables, computed again from the measurements that are shipped."""

import msgspec
from pydantic import Field

from ppd.core import report
from ppd.runtime.settings import CommandSettings, load


class ReportSettings(CommandSettings):
    """Tables 1 and 2, the different winners and the D-local cells at even weights, from the released sweep
    on 4 x H100; the published figures stand in brackets. Needs no cluster."""

    json_: bool = Field(False, alias="json", description="as JSON")


def main(argv: list[str]) -> int:
    settings = load(ReportSettings, argv, "ppd table report")
    built = report.build()
    if settings.json_:
        print(msgspec.json.format(msgspec.json.encode(built), indent=1).decode())
    else:
        print(report.render(built), end="")
    return 0
