"""``sglang trace``: render a recorded trace, or run a script and record every program in it."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from sglang.errors import SglangError
from sglang.views.prices import checked_prices
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.trace_formats import FORMATS
from sglang.views.timeline.tracing import tracing, writable

ENDINGS = {"html": ".html", "json": ".json", "chrome": ".chrome.json", "otlp-json": ".otlp.json"}

INTERRUPTED = 130  # a shell's exit code for an interrupt


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags. Words after the file belong to the script, except for a last ``-o FILE``."""
    parser.add_argument("-o", "--output", help="where to write; default: beside the file")
    parser.add_argument(
        "--format", choices=FORMATS, help="of the output; default: by the ending of -o, or html"
    )
    parser.add_argument(
        "--price", action="append", default=[], metavar="KIND=DOLLARS",
        help="dollars per million tokens of input, cached or output, to show what it cost; "
        "may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--otlp-traces-endpoint", metavar="URL",
        help="also send the trace to this URL as OpenTelemetry spans; needs the extra otel",
    )  # fmt: skip
    parser.add_argument("file", help="a trace that was saved as .json, or a Python script")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the script"
    )
    rest.required = False  # else some Python versions name this argument if the file is missing


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the command. Return the exit code: the script's own, or 1 if the command fails or the
    file is not a trace."""
    is_script = arguments.file.endswith(".py")
    rest = arguments.arguments
    if rest and not is_script:  # flags after a trace file are the command's
        words = [*_given(arguments), *rest, arguments.file]
        arguments, rest = parser.parse_args(words), []
    elif len(rest) > 1 and rest[-2] in ("-o", "--output") and arguments.output is None:
        arguments.output, rest = rest[-1], rest[:-2]
    output = Path(arguments.output or _beside(arguments))
    format = arguments.format or ("json" if output.suffix.lower() == ".json" else "html")
    try:
        prices = _prices(arguments.price)
        trace = Trace() if is_script else Trace.load(arguments.file)
        trace.prices = prices or trace.prices
        whole = writable(output)
        code = _recorded(arguments, rest, trace) if is_script else 0
        if code == INTERRUPTED and not trace.groups:
            print("sglang trace: interrupted before a program ran", file=sys.stderr)
            return code
        trace.save(whole, format)
        if arguments.otlp_traces_endpoint and not is_script:
            trace.export_otel(arguments.otlp_traces_endpoint)
    except (OSError, ValueError, SglangError) as error:
        print(f"sglang trace: {error}", file=sys.stderr)
        return 1
    totals = trace.totals()
    print(
        f"{output}: {totals['runs']} runs, {totals['requests']} requests, "
        f"{totals['wall_seconds']:.3f} s"
    )
    if not trace.groups:
        print("sglang trace: no program ran", file=sys.stderr)
    return code


def _given(arguments: argparse.Namespace) -> list[str]:
    """Return the flags before the file, as words."""
    words = [f"--price={price}" for price in arguments.price]
    for name in ("output", "format", "otlp_traces_endpoint"):
        if (value := getattr(arguments, name)) is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


def _beside(arguments: argparse.Namespace) -> str:
    return str(Path(arguments.file).with_suffix(ENDINGS[arguments.format or "html"]))


def _prices(given: list[str]) -> dict[str, float]:
    """Return the prices of texts NAME=DOLLARS. Raises ValueError if a text does not have this
    form."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ValueError(f"--price is {text!r}; give KIND=DOLLARS, as input=0.15") from None
    return checked_prices(found)


def _recorded(arguments: argparse.Namespace, rest: list[str], trace: Trace) -> int:
    """Run the script as ``python`` would, and return its exit code. Raises FileNotFoundError (an
    OSError) if there is no such file."""
    script = Path(arguments.file)
    if not script.is_file():
        raise FileNotFoundError(f"there is no file {arguments.file!r}")
    sys.argv = [arguments.file, *rest]
    sys.path.insert(0, str(script.resolve().parent))
    code: Any = 0
    with tracing(trace, otel=arguments.otlp_traces_endpoint):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            # The traceback begins at the script's first line, without the lines of this command.
            first = error.__traceback__
            while first is not None and first.tb_frame.f_code.co_filename != str(script):
                first = first.tb_next
            traceback.print_exception(type(error), error, first or error.__traceback__)
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if code is not None and not isinstance(code, int):  # as Python does
        print(code, file=sys.stderr)
        return 1
    return int(code or 0)
