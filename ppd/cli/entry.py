"""The way into the `ppd` command. Nothing is imported before a Ctrl-C is taken care of."""


def main() -> None:
    try:
        from ppd.cli.main import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
