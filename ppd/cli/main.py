"""The `ppd` command: one table of subcommands, each imported only when it is called."""

import os
import signal
import sys
from typing import NamedTuple

from ppd.cli import lazily


class Command(NamedTuple):
    """A subcommand; `module` has `main(argv: list[str]) -> int`."""

    name: str
    module: str
    summary: str


SERVICES = "One service alone"
GROUPS: dict[str, tuple[Command, ...]] = {
    "A stack on this machine": (
        Command("up", "ppd.cli.up", "start etcd, NATS, planner, engines and frontend, and serve a model"),
        Command("down", "ppd.cli.down", "stop what `ppd up` started"),
        Command("status", "ppd.cli.status", "workers, table version, sessions, and what is down"),
        Command("chat", "ppd.cli.chat", "talk to the model; shows the path of each turn"),
        Command("doctor", "ppd.cli.doctor.command", "check whether this machine can run a stack"),
        Command("model", "ppd.cli.model", "prepare the small model that comes from PyPI"),
    ),
    "A cluster": (
        Command("table", "ppd.cli.table", "see, tune and undo the PPD table"),
        Command("profile", "ppd.cli.profile", "measure the PPD table on a live cluster"),
        Command("compose", "ppd.cli.compose", "write the compose file of a placement's engines"),
        Command("key", "ppd.cli.key", "API keys of the frontend: new, list, revoke"),
        Command("trace", "ppd.cli.trace", "draw a turn's trace from Jaeger: where its time went"),
    ),
    "Without a cluster": (Command("bench", "bench.main", "the paper's figures and the policies, simulated"),),
    SERVICES: (
        Command("worker", "workers.main", "the agent beside one engine"),
        Command("planner", "planner.main", "the service that owns the PPD table"),
        Command("frontend", "controlplane.main", "the OpenAI API, and the routing of each turn"),
    ),
}


def _help() -> str:
    width = max(len(command.name) for group in GROUPS.values() for command in group)
    lines = ["usage: ppd COMMAND [options]        (ppd COMMAND --help shows its options)"]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {command.name:<{width}}  {command.summary}" for command in group]
    return "\n".join(lines)


def _find(name: str) -> Command | None:
    return next((command for group in GROUPS.values() for command in group if command.name == name), None)


def _unknown(name: str) -> str:
    import difflib

    names = [command.name for group in GROUPS.values() for command in group]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean `ppd {close[0]}`?" if close else "`ppd --help` lists the commands"
    return f"ppd: there is no command {name!r}; {hint}"


def _end(number: int, frame: object) -> None:
    """A stop is no failure, whenever it comes: supervisors restart what a signal ended.

    Nothing is begun yet that would have to be cleaned up, and an exception could get lost in a destructor.
    """
    os._exit(0)


def run(argv: list[str]) -> int:
    """Run one command; the exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"ppd {version('ppd')}")
        return 0
    command = _find(argv[0])
    if command is None:
        print(_unknown(argv[0]), file=sys.stderr)
        return 2
    if command in GROUPS[SERVICES]:
        signal.signal(signal.SIGTERM, _end)  # until the service, once it is loaded, has a handler of its own
    result: int = lazily.load(command.module).main(argv[1:])
    return result


def main() -> None:
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # The reader of a pipe such as `ppd status | head` went away; closing must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is the interpreter's own end
    sys.exit(status)


if __name__ == "__main__":
    main()
