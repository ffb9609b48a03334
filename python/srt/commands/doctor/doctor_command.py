"""``sglang doctor``: checks whether a server would start on this machine and whether a running
server answers. With ``--prebuild`` it also compiles what a server would compile.

Its flags are those of ``sglang serve``, so it checks what that command would do with them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from sglang.srt.commands.doctor import machine_checks as machine
from sglang.srt.commands.doctor.finding import FAIL, CheckFinding, examine
from sglang.srt.config import Config, add_arguments, add_model_argument, from_arguments
from sglang.srt.config.command_line import keys_from_environment
from sglang.srt.system.logs import escaped


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server's flags and the command's own."""
    add_model_argument(parser)
    own = parser.add_argument_group("doctor")
    own.add_argument("--url", default="", help="check the running server at this address instead")
    own.add_argument(
        "--prebuild", action="store_true",
        help="compile the GPU's kernels for the model now, so that servers start sooner",
    )  # fmt: skip
    own.add_argument("--json", action="store_true", help="print JSON")
    add_arguments(parser)


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the findings. Return the exit code: 1 if a check fails."""
    try:
        keys_from_environment(arguments, "api_key", "admin_api_key")
        config = from_arguments(arguments)
    except ValueError as error:
        parser.error(str(error))
    if arguments.prebuild and arguments.url:
        parser.error("--prebuild compiles on this machine and --url names another; give one.")
    findings = _findings(arguments, config)
    failed = any(finding.state == FAIL for finding in findings)
    if arguments.json:
        print(
            json.dumps(
                {"ok": not failed, "findings": [dataclasses.asdict(each) for each in findings]},
                indent=2,
            )
        )
    else:
        print("\n".join(_table(findings)))
    return int(failed)


def _findings(arguments: argparse.Namespace, config: Config) -> list[CheckFinding]:
    if arguments.prebuild:
        from sglang.srt.commands.doctor.prebuild import prebuild

        return prebuild(config)
    return remote(arguments.url, config) if arguments.url else local(config)


def local(config: Config) -> list[CheckFinding]:
    """Return the findings about this machine, with the model and the flags of ``config``."""
    return examine(
        [
            ("python", machine.python),
            ("packages", machine.packages),
            ("device", lambda: machine.device(config)),
            ("model", lambda: model(config)),
            ("port", lambda: machine.port(config)),
            ("keys, TLS", lambda: machine.edge(config)),
            ("limits", machine.limits),
            ("client", machine.clients),
            ("optional", lambda: machine.optional(config)),
        ]
    )


def model(config: Config) -> list[CheckFinding]:
    """Return the findings about the model alone. Raises ImportError if a package is missing."""
    from sglang.srt.commands.doctor.model_checks import ModelChecks

    found = ModelChecks(config)
    return examine(
        [
            ("model", found.directory),
            ("weights", found.weights),
            ("ranks", found.ranks) if config.parallel.ranks > 1 else ("memory", found.memory),
            ("tokenizer", found.tokenizer),
        ]
    )


def remote(url: str, config: Config) -> list[CheckFinding]:
    """Return the findings about the server at ``url``."""
    from sglang.srt.commands.doctor.server_checks import Remote

    try:
        server = Remote(url, config.server.api_key)
    except Exception as error:  # urllib raises several errors for a bad URL
        return [
            CheckFinding("url", FAIL, f"{url!r}: {error}", "give one such as http://host:30000")
        ]
    return examine(
        [
            ("health", server.reach),
            ("keys", server.keys),
            ("models", server.models),
            ("completion", server.completion),
            ("streaming", server.streaming),
            ("metrics", server.metrics),
        ]
    )


def _table(findings: Sequence[CheckFinding]) -> Iterator[str]:
    """Yield the lines of a table: state, check and finding, with the fix below."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    indent = " " * 23
    for finding in findings:
        head = f"{finding.state:<5} {finding.check:<16} "
        text = textwrap.wrap(head + escaped(finding.found), width, subsequent_indent=indent,
                             break_long_words=False, break_on_hyphens=False)  # fmt: skip
        yield from text
        if finding.fix:
            yield from textwrap.wrap(f"-> {finding.fix}", width, initial_indent=indent,
                                     subsequent_indent=indent + "   ",
                                     break_long_words=False, break_on_hyphens=False)  # fmt: skip
    counts = [finding.state for finding in findings]
    yield f"{counts.count('ok')} ok, {counts.count('warn')} warn, {counts.count('fail')} fail"
