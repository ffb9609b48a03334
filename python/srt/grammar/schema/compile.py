"""compile_schema: a JSON schema as rules of llguidance's Lark, enforced in full or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.grammar.schema.document import Document, Refusal
from sglang.srt.grammar.schema.emit import Emitter
from sglang.srt.grammar.schema.normal import Normal
from sglang.srt.grammar.schema.order import shallow


@dataclass(frozen=True)
class Compiled:
    """Attributes:
    start: name of the first rule.
    used: pointers of the keywords that had a say.
    combined: terminals of patterns that are combined or count, each with the pointer of a schema.
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
    normal = Normal(document)
    emitter = Emitter(normal, space, prefix)
    try:
        start = emitter.start(frozenset({document.root}), pointer)
    except RecursionError:
        raise Refusal(pointer, "is nested too deeply; flatten it.") from None
    start, rules = shallow(start, emitter.rules)
    return Compiled(start, rules, frozenset(normal.used), emitter.combined)
