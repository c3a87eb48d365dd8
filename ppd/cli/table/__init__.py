"""`ppd table`: see, tune and undo the PPD table. Each verb is a module, imported when it is called."""

import importlib
import sys
from typing import NamedTuple


class Verb(NamedTuple):
    """`module` has `main(argv: list[str]) -> int` or a function of the verb's name."""

    name: str
    module: str
    function: str
    summary: str


VERBS = (
    Verb("show", "ppd.cli.table.show", "main", "the verdicts as a heat map: terminal, --html, --png, --json"),
    Verb("history", "ppd.cli.table.versions", "history", "the versions that are kept"),
    Verb("diff", "ppd.cli.table.versions", "diff", "what differs between two versions"),
    Verb("explain", "ppd.cli.table.explain", "main", "what would happen to a given turn, and why"),
    Verb(
        "set-weights", "ppd.cli.table.edits", "set_weights", "how much an SLO class cares for TTFT and TPOT"
    ),
    Verb("freeze", "ppd.cli.table.edits", "freeze", "stop the online loop from publishing"),
    Verb("unfreeze", "ppd.cli.table.edits", "unfreeze", "let it publish again"),
    Verb("rollback", "ppd.cli.table.edits", "rollback", "an older version again, frozen until unfrozen"),
    Verb("rebuild", "ppd.cli.table.edits", "rebuild", "start anew from a profile's table, or from the seed"),
    Verb("report", "ppd.cli.table.report", "main", "the paper's tables from the shipped measurements"),
)


def _help() -> str:
    lines = ["usage: ppd table VERB [options]        (ppd table VERB --help shows its options)", ""]
    lines += [f"  {verb.name:<12} {verb.summary}" for verb in VERBS]
    lines += [
        "",
        "Exit status: 0 done, 1 the planner or its storage is away, 2 it cannot be done as asked.",
        "Without further flags it talks to the stack that `ppd up` started in this folder.",
    ]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    verb = next((each for each in VERBS if each.name == argv[0]), None)
    if verb is None:
        names = ", ".join(each.name for each in VERBS)
        print(f"ppd table: there is no verb {argv[0]!r}; there are {names}", file=sys.stderr)
        return 2
    result: int = getattr(importlib.import_module(verb.module), verb.function)(argv[1:])
    return result
