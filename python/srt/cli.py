"""The command ``sglang``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="sglang", description="Run and serve LM programs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP: OpenAI's routes under /v1, and /generate.",
    )
    if argv[:1] == ["serve"]:  # the flags need what only a server needs
        from srt.server import launch

        launch.add_parser_arguments(serve)
        return launch.run(parser.parse_args(argv), serve)
    schema = commands.add_parser(
        "schema",
        help="say what becomes of a JSON schema or another constraint",
        description="Examine a constraint: every keyword of a JSON schema, enforced or refused, "
        "the path taken, a sample, and an instance that is refused. Exit code 1 if it is refused.",
    )
    if argv[:1] == ["schema"]:
        from srt.server import schema_command

        schema_command.add_parser_arguments(schema)
        return schema_command.run(parser.parse_args(argv))
    parser.parse_args(argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
