"""Structural tags: free text, then between given strings what a schema allows, then free text.

Written as Lark for llguidance. A literal may be the text of a control token, which text alone never
is; which ones are is known with the vocabulary, so that ``for_vocabulary`` adds those spellings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from srt.core.vocabulary import Vocabulary
from srt.grammar.base import GrammarError

FREE = "FREE: /(?s:.*)/"
_MARKED = re.compile(r'(?m)^(\w+): (.*) //@(free )?("(?:[^"\\]|\\.)*")$')
Json = Callable[[Any, str], str]
Regex = Callable[[str], str]
KINDS = (
    "any_text", "const_string", "json_schema", "or", "regex", "sequence", "tag",
    "tags_with_separator", "triggered_tags",
)  # fmt: skip


def tags_grammar(tag: Any, schema_rule: Json, regex_rule: Regex) -> str:
    """Lark of a structural tag.

    Args:
        tag: ``{"type": "structural_tag", "structures": [{"begin", "schema", "end"}],
            "triggers": [...]}`` or ``{"type": "structural_tag", "format": {...}}``.
        schema_rule: schema and pointer -> ``%json ...``.
        regex_rule: pattern -> ``/.../``.

    Raises GrammarError.
    """
    fields = _fields(tag, "", {"type", "structures", "triggers", "format"})
    if fields.get("type", "structural_tag") != "structural_tag":
        raise GrammarError(f"structural_tag at /type: {fields['type']!r}; use 'structural_tag'.")
    writer = _Writer(schema_rule, regex_rule)
    if "format" in fields:
        body = writer.format(fields["format"], "/format", "")
    else:
        body = writer.legacy(fields)
    return "\n".join([f"start: {body}", *writer.rules, FREE])


def for_vocabulary(text: str, vocabulary: Vocabulary) -> str:
    """The grammar with each marked literal written with control tokens too, where it can be."""
    if "//@" not in text:
        return text
    ids: dict[str, int] = {}
    for token in sorted(vocabulary.special):
        if token < len(vocabulary.tokens) and vocabulary.tokens[token]:
            ids.setdefault(vocabulary.tokens[token].decode("utf-8", "replace"), token)
    if not ids:
        return text
    split = re.compile("|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True)))

    def spell(found: re.Match[str]) -> str:
        literal = json.loads(found[4])
        parts: list[str] = []
        at = 0
        for hit in split.finditer(literal):
            parts += [quoted(literal[at : hit.start()]), f"<[{ids[hit[0]]}]>"]
            at = hit.end()
        if not parts:
            return found[0]
        parts = [part for part in [*parts, quoted(literal[at:])] if part != '""']
        return f"{found[1]}: {found[2]} | {'FREE ' if found[3] else ''}{' '.join(parts)}"

    return _MARKED.sub(spell, text)


def quoted(text: str) -> str:
    """A string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _fields(value: Any, at: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GrammarError(f"structural_tag at {at or '/'}: must be a JSON object.")
    for name in value:
        if name not in known:
            raise GrammarError(
                f"structural_tag at {at}/{name}: not supported; use {', '.join(sorted(known))}."
            )
    return value


def _text(value: Any, at: str, empty: bool = True) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise GrammarError(
            f"structural_tag at {at}: must be a string{'' if empty else ', not empty'}."
        )
    return value


def _list(value: Any, at: str, empty: bool = False) -> list[Any]:
    if not isinstance(value, list) or not (value or empty):
        raise GrammarError(
            f"structural_tag at {at}: must be a list{'' if empty else ', not empty'}."
        )
    return value


class _Writer:
    """Rules of one grammar. ``after`` is the literal that follows a part; "" where nothing does."""

    def __init__(self, schema_rule: Json, regex_rule: Regex) -> None:
        self.rules: list[str] = []
        self._schema_rule = schema_rule
        self._regex_rule = regex_rule
        self._literals: dict[str, str] = {}

    def legacy(self, fields: dict[str, Any]) -> str:
        tags = []
        for i, one in enumerate(_list(fields.get("structures"), "/structures")):
            at = f"/structures/{i}"
            entry = _fields(one, at, {"begin", "schema", "end"})
            begin = _text(entry.get("begin"), f"{at}/begin", empty=False)
            schema = self._schema_rule(entry.get("schema", {}), f"{at}/schema")
            tags.append((begin, f"{schema} {self._literal(_text(entry.get('end'), f'{at}/end'))}"))
        return self._triggered(tags, fields.get("triggers"), "", "*", "/structures")

    def format(self, value: Any, at: str, after: str) -> str:
        """The expression of a format, and the rules it needs."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in KINDS:
            raise GrammarError(
                f"structural_tag at {at}/type: {kind!r} is not supported; use {', '.join(KINDS)}."
            )
        made: str = getattr(self, f"_{kind}")(value, at, after)
        return made

    # -- formats ---------------------------------------------------------------------------------

    def _const_string(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "value"})
        return self._literal(_text(value.get("value"), f"{at}/value"))

    def _json_schema(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "json_schema"})
        return self._schema_rule(value.get("json_schema", {}), f"{at}/json_schema")

    def _regex(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "pattern"})
        return self._rule(self._regex_rule(_text(value.get("pattern"), f"{at}/pattern")), "PATTERN")

    def _any_text(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type"})
        if not after:
            return "FREE"
        raise GrammarError(
            f"structural_tag at {at}: any_text must be last, or the content of a tag."
        )

    def _or(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "elements"})
        elements = _list(value.get("elements"), f"{at}/elements")
        made = [self.format(e, f"{at}/elements/{i}", after) for i, e in enumerate(elements)]
        return f"({' | '.join(made)})"

    def _sequence(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "elements"})
        elements = _list(value.get("elements"), f"{at}/elements")
        last = len(elements) - 1
        made = [
            self.format(e, f"{at}/elements/{i}", after if i == last else "more")
            for i, e in enumerate(elements)
        ]
        return f"({' '.join(made)})"

    def _tag(self, value: dict[str, Any], at: str, after: str) -> str:
        begin, body = self._tag_parts(value, at, after)
        return f"({self._literal(begin)} {body})"

    def _triggered_tags(self, value: dict[str, Any], at: str, after: str) -> str:
        _fields(value, at, {"type", "triggers", "tags", "at_least_one", "stop_after_first"})
        if after:
            raise GrammarError(f"structural_tag at {at}: triggered_tags must be last.")
        tags = [
            self._tag_parts(tag, f"{at}/tags/{i}", "more")
            for i, tag in enumerate(_list(value.get("tags"), f"{at}/tags"))
        ]
        some, first = bool(value.get("at_least_one")), bool(value.get("stop_after_first"))
        times = ("" if some else "?") if first else ("+" if some else "*")
        return self._triggered(tags, value.get("triggers"), at, times, f"{at}/tags")

    def _tags_with_separator(self, value: dict[str, Any], at: str, after: str) -> str:
        known = {"type", "tags", "separator", "at_least_one", "stop_after_first"}
        _fields(value, at, known)
        tags = _list(value.get("tags"), f"{at}/tags")
        either = " | ".join(self._tag(tag, f"{at}/tags/{i}", "more") for i, tag in enumerate(tags))
        one = self._rule(either, "one")
        separator = self._literal(_text(value.get("separator"), f"{at}/separator"))
        many = one if value.get("stop_after_first") else f"{one} ({separator} {one})*"
        return f"({many})" if value.get("at_least_one") else f"({many})?"

    # -- parts -----------------------------------------------------------------------------------

    def _tag_parts(self, value: Any, at: str, after: str) -> tuple[str, str]:
        """The literal that begins a tag, and the expression of the rest."""
        fields = _fields(value, at, {"type", "begin", "content", "end"})
        begin = _text(fields.get("begin"), f"{at}/begin", empty=False)
        end = _text(fields.get("end", ""), f"{at}/end")
        content = fields.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and (end or after):
            _fields(content, f"{at}/content", {"type"})
            if not end:
                raise GrammarError(f"structural_tag at {at}/end: any text before it has no end.")
            return begin, self._until(end)
        body = self.format(content, f"{at}/content", end or after)
        return begin, f"{body} {self._literal(end)}"

    def _triggered(
        self, tags: list[tuple[str, str]], triggers: Any, at: str, times: str, where: str
    ) -> str:
        names = [
            _text(trigger, f"{at}/triggers/{i}", empty=False)
            for i, trigger in enumerate(_list(triggers, f"{at}/triggers"))
        ]
        bodies: dict[str, list[str]] = {name: [] for name in names}
        for i, (begin, body) in enumerate(tags):
            # Of two triggers that begin alike the shorter one is met first.
            fitting = min((n for n in names if begin.startswith(n)), key=len, default=None)
            if fitting is None:
                raise GrammarError(
                    f"structural_tag at {where}/{i}/begin: {begin!r} begins with none of the "
                    f"triggers; add its beginning to {at}/triggers."
                )
            bodies[fitting].append(f"{self._literal(begin[len(fitting) :])} {body}")
        heads = []
        for name, options in bodies.items():
            if options:
                heads.append(self._rule(f"{self._until(name)} ({' | '.join(options)})", "tag"))
        tag = self._rule(" | ".join(heads), "tags")
        return f"{tag}{times}" + ("" if times == "" else " FREE")

    def _until(self, literal: str) -> str:
        """Free text up to the first ``literal``, with it."""
        lazy = self._name("until")
        self.rules.append(f"{lazy}[lazy]: FREE {quoted(literal)}")
        return self._rule(f"{lazy} //@free {quoted(literal)}", "head")

    def _literal(self, text: str) -> str:
        if not text:
            return ""
        if text not in self._literals:
            self._literals[text] = self._rule(f"{quoted(text)} //@{quoted(text)}", "literal")
        return self._literals[text]

    def _rule(self, body: str, kind: str) -> str:
        name = self._name(kind)
        self.rules.append(f"{name}: {body}")
        return name

    def _name(self, kind: str) -> str:
        return f"{kind}_{len(self.rules)}"
