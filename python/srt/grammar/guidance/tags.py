"""Structural tags: texts made of literals, free text, and parts that follow a schema or a pattern.

The formats and their fields are those of xgrammar. Each format is written together with what
follows it (``Rest``), so that free text can end at the literal after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.lark_limits import check_depth
from sglang.srt.grammar.guidance.tag_fields import (
    NO_LIMIT,
    count,
    fields_of,
    flag,
    items,
    refusal,
    strings,
    text_of,
)
from sglang.srt.grammar.guidance.tag_free_text import FREE, begins_free, begins_mixed, is_open
from sglang.srt.grammar.guidance.tag_rules import END, MORE, Rest, TagRules, any_of, before, either
from sglang.srt.grammar.guidance.tag_styles import BEGINS, TagArgument, arguments
from sglang.srt.grammar.schema.arrays import repeated

MOST_CHARS = 4096  # characters of a free text with a limit
MOST_REPEATS = 4096
MOST_SPACE = 8
NEWLINES = r"\n\r\t"
Schema = Callable[[Any, str, int | None], str]
Regex = Callable[[str], str]


@dataclass(frozen=True)
class Tag:
    """A tag. ``body``: its text after ``begin``, up to its end, and the continuation."""

    begin: str
    body: Rest


@dataclass(frozen=True)
class Free:
    """Free text with tags in it.

    Attributes:
        triggers: literals that begin a tag wherever they stand.
        excludes: literals that stand nowhere in the free text.
        some: the text begins with a tag.
        first: the text ends after the first tag.
    """

    triggers: Sequence[str]
    excludes: Sequence[str]
    some: bool
    first: bool


def tags_grammar(tag: Any, schema_rule: Schema, regex_rule: Regex) -> str:
    """Lark of a structural tag.

    Args:
        tag: ``{"type": "structural_tag", "structures": [{"begin", "schema", "end"}],
            "triggers": [...]}`` or ``{"type": "structural_tag", "format": {...}}``.
        schema_rule: schema, its pointer, and the most characters of white space between two of its
            tokens (None: as many as elsewhere) -> name of its rule.
        regex_rule: pattern -> ``/.../``.

    Raises GrammarError for what is malformed, and for free text that has no end.
    """
    fields = fields_of(tag, "", "type", "structures", "triggers", "format")
    if fields.get("type", "structural_tag") != "structural_tag":
        raise GrammarError(f"structural_tag at /type: {fields['type']!r}; use 'structural_tag'.")
    formats = Formats(schema_rule, regex_rule)
    if "format" in fields:
        body = formats.write(fields["format"], "/format", END)
    else:
        body = formats.legacy(fields)
    text = "\n".join([f"start: {either([body.text])}", *formats.rules.lines])
    try:
        check_depth(text)
    except GrammarError:
        raise GrammarError(
            "structural_tag: too many alternatives that end in free text stand one after the "
            "other; use fewer."
        ) from None
    return text


class Formats:
    """Formats as rules. Each method takes a format, its pointer and what follows it, and returns
    both together."""

    def __init__(self, schema_rule: Schema, regex_rule: Regex) -> None:
        self.rules = TagRules()
        self._schema_rule = schema_rule
        self._regex_rule = regex_rule
        self._ends: list[str] = []  # ends of the innermost tag; its free text holds none of them

    def write(self, value: Any, at: str, rest: Rest) -> Rest:
        """Write the rule of a format object, which ``rest`` follows. Raises GrammarError."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in KINDS:
            names = ", ".join(sorted(KINDS))
            raise refusal(f"{at}/type", f"{kind!r} is not supported; use {names}.")
        return KINDS[kind](self, value, at, rest)

    def legacy(self, fields: dict[str, Any]) -> Rest:
        """``structures`` and ``triggers``: tags in free text, each with a schema."""
        tags = []
        for i, one in enumerate(items(fields.get("structures"), "/structures")):
            at = f"/structures/{i}"
            entry = fields_of(one, at, "begin", "schema", "end")
            begin = text_of(entry.get("begin"), f"{at}/begin", empty=False)
            rule = self._schema_rule(entry.get("schema", {}), f"{at}/schema", None)
            end = self.rules.written(text_of(entry.get("end"), f"{at}/end"), MORE)
            tags.append(Tag(begin, before(Rest(rule, None, False), end)))
        triggers = strings(fields.get("triggers"), "/triggers")
        return self._around(tags, Free(triggers, [], False, False), "", "/structures", END)

    # -- single parts ----------------------------------------------------------------------------

    def const_string(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "value")
        return self.rules.written(text_of(value.get("value"), f"{at}/value"), rest)

    def json_schema(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "json_schema", "max_whitespace_cnt", "style",
                  any_order=False, excludes=[])  # fmt: skip
        schema, style = value.get("json_schema", {}), value.get("style", "json")
        most = value.get("max_whitespace_cnt")
        if most is not None:
            most = count(most, f"{at}/max_whitespace_cnt", MOST_SPACE)
        if style == "json":
            rule = self._schema_rule(schema, f"{at}/json_schema", most)
            return before(Rest(rule, None, False), rest)
        if style not in BEGINS:
            names = ", ".join(sorted([*BEGINS, "json"]))
            raise refusal(f"{at}/style", f"{style!r} is not supported; use {names}.")
        return self._styled(arguments(style, schema, f"{at}/json_schema"), most, rest)

    def _styled(self, properties: Sequence[TagArgument], most: int | None, rest: Rest) -> Rest:
        """The properties of an object as tags, with white space between them."""
        wide = MOST_SPACE if most is None else most
        space = f"{self.rules.rule(f'/[ {NEWLINES}]{{1,{wide}}}/', 'SPACE')}?" if wide else ""
        rest = before(Rest(space, None, False), rest)
        for one in reversed(properties):
            end = self.rules.written(one.end, MORE)
            if one.schema is not None:
                rule = self._schema_rule(one.schema, one.pointer, most)
                body = f"{space} {rule} {space} {end.text}"
            elif one.texts:
                body = any_of(self.rules.written(text, end) for text in one.texts).text
            else:
                body = self.rules.until(self.rules.free([one.end]), one.end)
            made = Rest(f"{space} {self.rules.literal(one.begin)} {body}", None, False)
            rest = before(made, rest) if one.required else self._repeated(made, rest, 0, 1)
        return rest

    def regex(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "pattern")
        pattern = self._regex_rule(text_of(value.get("pattern"), f"{at}/pattern"))
        terminal = self.rules.rule(pattern, "PATTERN")
        known = rest.heads and not rest.last and not rest.empty
        if known and rest.heads and self.rules.runs_over(pattern, rest.heads):
            return Rest(self.rules.ended(terminal, rest), None, False)
        return before(Rest(terminal, None, False), rest)

    def any_text(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "excludes", "max_chars", max_tokens=None)
        excludes = strings(value.get("excludes", []), f"{at}/excludes", empty=True)
        most = value.get("max_chars")
        if most is not None:
            most = count(most, f"{at}/max_chars", MOST_CHARS)
        terminal = self.rules.free([*excludes, *self._stops(at, rest)], most)
        return Rest(self.rules.ended(terminal, rest), None, False)

    def tag(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        tag = self._tag(value, at, rest)
        return self.rules.written(tag.begin, tag.body)

    # -- parts of parts --------------------------------------------------------------------------

    def sequence(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "elements")
        elements = items(value.get("elements"), f"{at}/elements")
        for i in range(len(elements) - 1, -1, -1):
            rest = self.write(elements[i], f"{at}/elements/{i}", rest)
        return rest

    def either(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "elements")
        elements = items(value.get("elements"), f"{at}/elements")
        opened = any(map(is_open, elements))
        inner = self.rules.shared(rest) if opened else MORE
        made = any_of(self.write(e, f"{at}/elements/{i}", inner) for i, e in enumerate(elements))
        return made if opened else before(made, rest)

    def optional(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "content")
        return self._times(value, at, rest, 0, 1)

    def star(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "content")
        return self._times(value, at, rest, 0, None)

    def plus(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "content")
        return self._times(value, at, rest, 1, None)

    def repeat(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "min", "max", "content")
        low = count(value.get("min"), f"{at}/min", MOST_REPEATS)
        high = None
        if value.get("max") != NO_LIMIT:
            high = count(value.get("max"), f"{at}/max", MOST_REPEATS)
            if high < low:
                raise refusal(f"{at}/max", f"is {high}, less than min, which is {low}.")
        return self._times(value, at, rest, low, high)

    def _times(
        self, value: dict[str, Any], at: str, rest: Rest, low: int, high: int | None
    ) -> Rest:
        content, at = value.get("content"), f"{at}/content"
        if not isinstance(content, dict) or not is_open(content) or high == 0:
            if rest.text.strip() and low != high and begins_free(content):
                raise refusal(
                    at,
                    "begins with free text, which cannot be told from what follows; "
                    "begin it with a literal.",
                )
            if high not in (0, 1) and begins_mixed(content):
                raise refusal(
                    at,
                    "begins with free text in one of its alternatives, which cannot be told from "
                    "the others when it is repeated; begin each with a literal.",
                )
            made = self.write(content, at, END if high == 0 else MORE)
            return self._repeated(made, rest, low, high)
        free = content["type"] in FREE and (low < 2 or not content.get("at_least_one"))
        if high == 1 or free:  # repeated free text is free text
            made = self.write(content, at, self.rules.shared(rest))
            return any_of([made, self.rules.shared(rest)]) if low == 0 else made
        raise refusal(at, "ends in free text, which cannot be repeated; give it an end.")

    def _repeated(self, made: Rest, rest: Rest, low: int, high: int | None) -> Rest:
        """A part that was written with MORE after it, ``low`` to ``high`` times."""
        if high == 0:
            return rest
        one = self.rules.shared(made).text
        more = repeated(one, max(0, low - 1), None if high is None else high - 1)
        found = before(before(made, replace(MORE, text=more)), rest)
        if low == 0:
            found = any_of([found, rest])
        return replace(found, text=f"{repeated(one, low, high)} {rest.text}")

    # -- tags ------------------------------------------------------------------------------------

    def triggered_tags(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(
            value, at, "type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"
        )
        free = Free(
            strings(value.get("triggers"), f"{at}/triggers"),
            strings(value.get("excludes", []), f"{at}/excludes", empty=True),
            flag(value.get("at_least_one"), f"{at}/at_least_one"),
            flag(value.get("stop_after_first"), f"{at}/stop_after_first"),
        )
        behind = self.rules.shared(rest) if free.first else MORE
        tags = self._tags(value, at, behind)
        return self._around(tags, free, at, f"{at}/tags", rest)

    def dispatch(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "rules", "loop", "excludes")
        excludes = strings(value.get("excludes", []), f"{at}/excludes", empty=True)
        first = not flag(value.get("loop", True), f"{at}/loop")
        behind = self.rules.shared(rest) if first else MORE
        tags = []
        for i, rule in enumerate(items(value.get("rules"), f"{at}/rules")):
            if not isinstance(rule, list) or len(rule) != 2:
                raise refusal(f"{at}/rules/{i}", "must be a list of a string and a format.")
            begin = text_of(rule[0], f"{at}/rules/{i}/0", empty=False)
            tags.append(Tag(begin, self.write(rule[1], f"{at}/rules/{i}/1", behind)))
        free = Free([tag.begin for tag in tags], excludes, False, first)
        return self._around(tags, free, at, f"{at}/rules", rest)

    def tags_with_separator(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        fields_of(value, at, "type", "tags", "separator", "at_least_one", "stop_after_first")
        separator = self.rules.literal(text_of(value.get("separator"), f"{at}/separator"))
        low = int(flag(value.get("at_least_one"), f"{at}/at_least_one"))
        first = flag(value.get("stop_after_first"), f"{at}/stop_after_first")
        if first and is_open(value):
            rest = self.rules.shared(rest)
            made = self._any_tag(value, at, rest)
            return made if low else any_of([made, rest])
        made = self._any_tag(value, at, MORE)
        if not first:
            one = self.rules.rule(made.text, "one")
            more = replace(MORE, text=f"({separator} {one})*")
            made = before(replace(made, text=one), more)
        return self._repeated(made, rest, low, 1)

    def _any_tag(self, value: dict[str, Any], at: str, rest: Rest) -> Rest:
        tags = self._tags(value, at, rest)
        return any_of(self.rules.written(tag.begin, tag.body) for tag in tags)

    def _tags(self, value: dict[str, Any], at: str, rest: Rest) -> list[Tag]:
        tags = items(value.get("tags"), f"{at}/tags")
        return [self._tag(tag, f"{at}/tags/{i}", rest) for i, tag in enumerate(tags)]

    def _tag(self, value: Any, at: str, rest: Rest) -> Tag:
        fields = fields_of(value, at, "type", "begin", "content", "end")
        begin = text_of(fields.get("begin"), f"{at}/begin")
        end = fields.get("end", "")
        if isinstance(end, list):
            ends = [text_of(one, f"{at}/end/{i}") for i, one in enumerate(items(end, f"{at}/end"))]
            rest = self.rules.shared(rest)
        else:
            ends = [text_of(end, f"{at}/end")]
        behind = any_of(self.rules.written(one, rest) for one in ends)
        outer, self._ends = self._ends, [one for one in ends if one]
        body = self.write(fields.get("content"), f"{at}/content", behind)
        self._ends = outer
        return Tag(begin, body)

    def _around(self, tags: list[Tag], free: Free, at: str, where: str, rest: Rest) -> Rest:
        """Free text with tags in it. ``where``: the pointer of the tags."""
        begun: dict[str, list[str]] = {}
        for i, tag in enumerate(tags):
            # The shorter of two triggers that begin alike is found first.
            fitting = [name for name in free.triggers if tag.begin.startswith(name)]
            trigger = min(fitting, key=len, default=None)
            if trigger is None:
                raise refusal(
                    f"{where}/{i}/begin",
                    f"{tag.begin!r} begins with none of the triggers; "
                    f"add its beginning to {at}/triggers.",
                )
            body = f"{self.rules.literal(tag.begin[len(trigger) :])} {tag.body.text}"
            begun.setdefault(trigger, []).append(body)
        starts = any_of(self.rules.written(tag.begin, tag.body) for tag in tags)
        if free.some and free.first:
            return starts
        text = self.rules.free([*begun, *free.excludes, *self._stops(at, rest)])
        heads = [
            f"{self.rules.until(text, trigger, free.excludes)} {either(bodies)}"
            for trigger, bodies in begun.items()
            if not any(excluded in trigger for excluded in free.excludes)
        ]
        end = self.rules.ended(text, rest)
        if free.first:
            return Rest(either([*heads, end]), None, False)
        many = f"{self.rules.rule(either(heads), 'tags')}*" if heads else ""
        found = Rest(f"{many} {end}", None, False)
        return before(starts, found) if free.some else found

    # -- continuations ---------------------------------------------------------------------------

    def _stops(self, at: str, rest: Rest) -> list[str]:
        """The literals that free text does not hold. Raises GrammarError where what follows may
        begin with anything else."""
        if rest.heads is None or rest.empty:
            raise refusal(
                at,
                "free text must end at a literal, or be the end of the text; put a const_string "
                "or a tag after it, or give the tag around it an end.",
            )
        return [*self._ends, *self.rules.grouped(rest.heads)]


KINDS: dict[str, Callable[[Formats, dict[str, Any], str, Rest], Rest]] = {
    "any_text": Formats.any_text,
    "const_string": Formats.const_string,
    "dispatch": Formats.dispatch,
    "json_schema": Formats.json_schema,
    "optional": Formats.optional,
    "or": Formats.either,
    "plus": Formats.plus,
    "regex": Formats.regex,
    "repeat": Formats.repeat,
    "sequence": Formats.sequence,
    "star": Formats.star,
    "tag": Formats.tag,
    "tags_with_separator": Formats.tags_with_separator,
    "triggered_tags": Formats.triggered_tags,
}
