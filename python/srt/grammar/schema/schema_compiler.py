"""compile_schema: a JSON schema as rules of llguidance's Lark, enforced in full or refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sglang.srt.grammar.schema.emit import Emitter
from sglang.srt.grammar.schema.normal_form import Normalizer
from sglang.srt.grammar.schema.quoted import NEVER
from sglang.srt.grammar.schema.schema_document import Document, Refusal

DEEPEST = 200  # rules that may refer to each other in a row
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/')
_NAME = re.compile(r"[a-z]\w*")


@dataclass(frozen=True)
class Compiled:
    """Rules of a schema.

    Attributes:
        start: name of the first rule.
        used: pointers of the keywords that were applied.
        combined: terminals of patterns that are combined or count, each with the pointer of a
            schema.
    """

    start: str
    rules: list[str]
    used: frozenset[str]
    combined: dict[str, str]


def compile_schema(schema: Any, pointer: str = "", space: str = "", prefix: str = "") -> Compiled:
    """Every value that the rules let through satisfies the schema.

    Args:
        schema: parsed JSON.
        pointer: where it stands in what the user wrote, for errors.
        space: pattern for white space between tokens, as ``whitespace_pattern`` gives it.
        prefix: what names of rules begin with, to tell schemas of one grammar apart.

    Raises Refusal, a GrammarError, where a keyword cannot be enforced.
    """
    document = Document(schema, pointer)
    normal = Normalizer(document)
    emitter = Emitter(normal, space, prefix)
    try:
        start = emitter.start(frozenset({document.root}), pointer)
    except RecursionError:
        raise Refusal(pointer, "is nested too deeply; flatten it.") from None
    start, rules = shallow(start, emitter.rules)
    return Compiled(start, rules, frozenset(normal.used), emitter.combined)


def shallow(start: str, rules: list[str]) -> tuple[str, list[str]]:
    """A first rule and rules of the same language that refer to each other less deeply.

    llguidance follows rules by recursion on the stack of its thread. The new first rule names the
    rules of a long chain from its end, so that each finds the next one made already.
    """
    bodies = {name: body for name, _, body in (rule.partition(": ") for rule in rules)}
    order, depth = _post_order(start, bodies)
    if depth <= DEEPEST:
        return start, rules
    first = f"{start}_first"
    never = f"{start.upper()}_NEVER"
    ends = " | ".join(name for name in order if name != start)
    return first, [*rules, f"{never}: /{NEVER}/", f"{first}: {never} ({ends}) | {start}"]


def _post_order(start: str, bodies: dict[str, str]) -> tuple[list[str], int]:
    """The rules below ``start``, each after those it refers to, and their depth."""
    order: list[str] = []
    seen = {start}
    stack = [(start, _referred(bodies.get(start, ""), bodies))]
    depth = 1
    while stack:
        name, left = stack[-1]
        while left and left[-1] in seen:
            left.pop()
        if left:
            after = left.pop()
            seen.add(after)
            stack.append((after, _referred(bodies[after], bodies)))
            depth = max(depth, len(stack))
        else:
            order.append(name)
            stack.pop()
    return order, depth


def _referred(body: str, bodies: dict[str, str]) -> list[str]:
    names = _NAME.findall(_STRINGS.sub(" ", body))
    return [name for name in dict.fromkeys(reversed(names)) if name in bodies]
