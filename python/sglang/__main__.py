"""``python -m sglang``: the command ``sglang``."""

import sys


def main() -> int:
    """Run one subcommand; its exit code."""
    from sglang.srt.cli import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
