"""``sglang schema``: what becomes of a constraint, keyword by keyword, before a server sees it."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError
from sglang.srt.grammar.schema.keyword_report import KeywordFinding, examine
from sglang.srt.grammar.schema.sample import BYTES, sample
from sglang.srt.grammar.schema.schema_document import Refusal

KINDS = ("json_schema", "regex", "ebnf", "structural_tag", "choices")
MUTATIONS = 200
WIDEST = 60  # columns of a pointer


@dataclass
class Report:
    """``path`` is "" where the constraint is refused. ``allowed`` and ``refused`` are texts; None
    where none was found."""

    kind: str
    path: str = ""
    error: str = ""
    keywords: list[KeywordFinding] = field(default_factory=list)
    sample: str | None = None
    allowed: str | None = None
    refused: str | None = None
    notes: list[str] = field(default_factory=list)


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the constraint; - for standard input")
    kinds = parser.add_mutually_exclusive_group()
    for name in KINDS:
        flag = f"--{name.replace('_', '-')}"
        text = "the default" if name == KINDS[0] else f"FILE holds: {name.replace('_', ' ')}"
        kinds.add_argument(flag, dest="kind", action="store_const", const=name, help=text)
    parser.set_defaults(kind=KINDS[0])
    parser.add_argument(
        "--whitespace", default="", metavar="PATTERN",
        help="white space allowed between two tokens of JSON (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the sample (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """1 where the constraint is refused, 2 where it cannot be read."""
    try:
        if arguments.file == "-":
            text = sys.stdin.read()
        else:
            text = Path(arguments.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"sglang schema: {arguments.file}: {error}", file=sys.stderr)
        return 2
    if arguments.kind == "regex":
        text = text.removesuffix("\n")
    report = examine_constraint(arguments.kind, text, arguments.whitespace, arguments.seed)
    print(json.dumps(asdict(report), indent=2) if arguments.json else "\n".join(_lines(report)))
    return 0 if report.path else 1


def examine_constraint(kind: str, text: str, whitespace: str = "", seed: int = 0) -> Report:
    """All that the command prints."""
    from sglang.srt.grammar.compile_plan import build_grammar, make_plan

    report = Report(kind)
    schema: Any = None
    if kind == "json_schema":
        try:
            schema = json.loads(text)
            report.keywords = examine(schema)
        except (ValueError, RecursionError) as error:
            report.error = str(error) if isinstance(error, Refusal) else f"not JSON: {error}"
    plan = make_plan(Constraint(kind, text), "auto", whitespace)
    if plan.error:
        report.error = plan.error
        return report
    try:
        grammar = build_grammar(plan, BYTES, canonical=False)
        report.path = plan.path
        report.sample = sample(grammar, seed)
        report.allowed = sample(grammar, seed + 1)
    except GrammarError as error:
        report.error = "" if report.path else str(error)
        report.notes.append(str(error))
        return report
    for other in _near(report.allowed, random.Random(seed), kind):
        if not _accepts(grammar, other):
            report.refused = other
            if kind != "json_schema" or _valid(schema, other) is False:
                break
    if kind == "json_schema":
        report.notes += _validated(schema, report)
    return report


def _accepts(grammar: CompiledGrammar, text: str) -> bool:
    matcher = grammar.matcher()
    return all(matcher.advance(byte) for byte in text.encode()) and matcher.accepting


def _validated(schema: Any, report: Report) -> list[str]:
    """Verdicts of ``jsonschema`` on the two instances."""
    allowed = _valid(schema, report.allowed)
    if allowed is None:
        return ["not validated: jsonschema is not installed, or does not take the schema."]
    if not allowed:
        return ["jsonschema refuses the sample; please report this schema."]
    if report.refused is not None and _valid(schema, report.refused):
        return ["jsonschema allows what is refused here: a spelling that is never written."]
    return ["both validated with jsonschema."]


def _valid(schema: Any, text: str | None) -> bool | None:
    """Whether the text fits the schema; None where that is unknown."""
    try:
        from jsonschema.validators import validator_for

        return bool(validator_for(schema)(schema).is_valid(json.loads(text or "")))
    except Exception:  # jsonschema and re raise many errors for a schema they do not take
        return None


def _near(text: str, dice: random.Random, kind: str) -> Iterator[str]:
    """Texts that differ a little: JSON with a part changed, else with a character changed."""
    if kind == "json_schema":
        value = json.loads(text)
        for other in (*_changed(value), None, [], {}, "", 0, -1, 0.5, True):
            yield json.dumps(other, ensure_ascii=False, separators=(",", ":"))
    for _ in range(MUTATIONS):
        at = dice.randint(0, len(text))
        yield text[:at] + dice.choice("aZ0 -\u00e9") + text[at + dice.randint(0, 1) :]


def _changed(value: Any) -> Iterator[Any]:
    """The value with one part of it left out, or of another type."""
    if isinstance(value, dict):
        for name in value:
            yield {other: inner for other, inner in value.items() if other != name}
        for name, inner in value.items():
            for other in (*_changed(inner), None, "", 0, [], {}):
                yield {**value, name: other}
        yield {**value, "another": 0}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value[:at] + value[at + 1 :]
            for other in (*_changed(inner), None, "", 0, [], {}):
                yield [*value[:at], other, *value[at + 1 :]]
        yield [*value, None]
    elif isinstance(value, str):
        yield value + "!"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (value + 1_000_000, -value - 1, value + 0.5)


def _lines(report: Report) -> Iterator[str]:
    if report.keywords:
        wide = min(WIDEST, max(len(one.pointer) for one in report.keywords))
        for one in report.keywords:
            note = f"  {one.note}" if one.note else ""
            yield f"{one.pointer or '/':<{wide}}  {one.state}{note}"
        yield ""
    if not report.path:
        yield f"refused: {report.error}"
        return
    yield f"path: {report.path}"
    for name, text in (
        ("sample", report.sample), ("allowed", report.allowed), ("refused", report.refused)
    ):  # fmt: skip
        if text is not None:
            yield f"{name}: {text}"
    yield from report.notes
