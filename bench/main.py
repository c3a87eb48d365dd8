"""`ppd bench NAME`: what runs in virtual time, and what holds it against running engines."""

import importlib
import sys

COMMANDS = {
    "paper": "the paper's tables and figures from the calibrated simulator",
    "policies": "every policy under conditions that differ in kind",
    "fit": "the sweep's constants fitted anew on a part of it, and the errors on the rest",
    "truth": "the engine model against running engines under the same load",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        print("usage: ppd bench NAME [options]\n", *(f"  {n:<10}{t}" for n, t in COMMANDS.items()), sep="\n")
        return 0 if argv[:1] in ([], ["--help"], ["-h"]) else 2
    result: int = importlib.import_module(f"bench.{argv[0]}").main(argv[1:])
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
