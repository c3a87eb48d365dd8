"""`ppd model prepare [NAME]`: what `ppd up` does by itself when it is needed."""

import subprocess
import sys

from pydantic import Field

from ppd.cli.model import catalog
from ppd.runtime.settings import CommandSettings, load

_USAGE = (
    "usage: ppd model prepare [NAME] [--force]   make a packaged model ready for the engine, print its folder"
)


class PrepareSettings(CommandSettings):
    """Make a packaged model ready for the engine, and print the folder it is in."""

    force: bool = Field(False, description="convert it again although it is there")


def main(argv: list[str]) -> int:
    if argv[:1] != ["prepare"]:
        asked_for_help = argv[:1] in ([], ["-h"], ["--help"])
        print(_USAGE, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    names, flags = [arg for arg in argv[1:] if arg[:1] != "-"], [arg for arg in argv[1:] if arg[:1] == "-"]
    settings = load(PrepareSettings, flags, "ppd model prepare")
    try:
        model = catalog.find(names[0] if names else catalog.DEFAULT)
    except catalog.ModelError as error:
        print(f"ppd model: {error}", file=sys.stderr)
        return 1
    if settings.force or not model.prepared:
        # Its own output goes to standard error, so that standard output is the folder alone.
        argv = [sys.executable, "-m", "ppd.cli.model.convert", model.served_name]
        done = subprocess.run(argv + ["--force"] * settings.force, stdout=sys.stderr, check=False)
        if done.returncode:
            return done.returncode
    print(model.source)
    return 0
