"""grammar_of: converts a constraint to the text of a grammar that llguidance enforces."""

from __future__ import annotations

import json
import re
from typing import Any

from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.gbnf_lark import gbnf_to_lark
from sglang.srt.grammar.guidance.lark_limits import check_depth
from sglang.srt.grammar.guidance.lark_recursion import lark_without_tail_recursion
from sglang.srt.grammar.guidance.tags import tags_grammar
from sglang.srt.grammar.guidance.trial_text import verify_nesting
from sglang.srt.grammar.guidance.work_limits import too_hard
from sglang.srt.grammar.schema import Compiled, Refusal, compile_schema, whitespace_pattern

TOO_HARD = (
    "its patterns and the other conditions beside them take too much work together; anchor the "
    "patterns with ^ and $, count less in them, or set additionalProperties to false."
)
_JSON = re.compile(r"%json\b\s*")


def grammar_of(constraint: Constraint, whitespace: str) -> str:
    """Return a grammar in llguidance's Lark for a constraint of any kind except choices.

    Args:
        whitespace: pattern allowed between two tokens of JSON if the constraint has none.

    Raises GrammarError for a malformed constraint, or one that cannot be enforced.
    """
    space = whitespace_pattern(
        whitespace if constraint.whitespace is None else constraint.whitespace
    )
    if constraint.kind == "json_schema":
        compiled = _walkable(compile_schema(load(constraint.text, "json_schema"), "", space))
        return "\n".join([f"start: {compiled.start}", *compiled.rules])
    if constraint.kind == "regex":
        return f"start: TEXT\nTEXT: {regex_terminal(constraint.text)}"
    if constraint.kind == "ebnf":
        return _ebnf(constraint.text, space)
    if constraint.kind == "structural_tag":
        schemas = Schemas(space, "structural_tag")
        tag = load(constraint.text, "structural_tag")
        return "\n".join([tags_grammar(tag, schemas.rule, regex_terminal), *schemas.rules])
    raise GrammarError(f"llguidance does not support constraints of kind {constraint.kind!r}.")


class Schemas:
    """Compiles the schemas inside a larger grammar. ``rules``: the rules of all schemas."""

    def __init__(self, space: str, kind: str) -> None:
        self.rules: list[str] = []
        self._space = space
        self._kind = kind
        self._count = 0

    def rule(self, schema: Any, pointer: str, most: int | None = None) -> str:
        """Compile the schema at ``pointer`` and return the name of its rule. ``most``: limit of the
        white space characters between two tokens of JSON; None: the pattern ``space``."""
        self._count += 1
        space = self._space if most is None else whitespace_pattern(f"[ \\n\\t]{{0,{most}}}")
        try:
            compiled = _walkable(compile_schema(schema, pointer, space, f"j{self._count}_"))
        except Refusal as error:
            at = error.pointer or "/"
            raise GrammarError(f"{self._kind} at {at}: {error.reason}") from None
        self.rules += compiled.rules
        return compiled.start


def _walkable(compiled: Compiled) -> Compiled:
    """Return ``compiled``. Raises Refusal if the masks of a terminal would exceed the limits of a
    step, GrammarError if those of nested alternatives would."""
    for terminal, pointer in compiled.combined.items():
        if too_hard(terminal):
            raise Refusal(pointer, TOO_HARD)
    verify_nesting(compiled.rules)
    return compiled


def load(text: str, kind: str) -> Any:
    """Decode the JSON of a constraint. Raises GrammarError."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise GrammarError(f"{kind} holds a lone surrogate; write the whole character.") from None
    except ValueError as error:
        raise GrammarError(f"{kind} is not JSON: {error}") from None
    except RecursionError:
        raise GrammarError(f"{kind} is nested too deeply; flatten it.") from None


def regex_terminal(pattern: str) -> str:
    """Return a regex as a terminal of Lark."""
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(pattern)}/"


def _ebnf(text: str, space: str) -> str:
    """Convert GBNF to Lark; for a text in Lark, check and rewrite its schemas."""
    if "::=" in text:
        lark = gbnf_to_lark(text)
        check_depth(lark)
        return lark
    check_depth(text)
    schemas = Schemas(space, "ebnf")
    parts: list[str] = []
    at = 0
    for count, found in enumerate(_JSON.finditer(text)):
        if found.start() < at:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"ebnf: the JSON after %json is malformed: {error}") from None
        parts += [text[at : found.start()], schemas.rule(schema, f"/%json[{count}]")]
        at = end
    rules = lark_without_tail_recursion("".join([*parts, text[at:]]))
    return "\n".join([rules, *schemas.rules])


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")
