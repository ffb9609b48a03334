"""Structural tags: what each format allows, against a reader of formats that knows no grammar."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.json_acceptor import BYTES, END, accepts_text
from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from sglang.srt.grammar.guidance.tag_free_text import begins_mixed
from sglang.srt.grammar.guidance.work_limits import SCHEMA

ROUNDS = int(os.environ.get("GRAMMAR_CASES", "120"))
ANY: dict[str, Any] = {"type": "any_text"}
NO = ["x<b>2</b>", "<a>1", "<a>2</a>"]


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def tag(begin: str, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


ONE = tag("<a>", {"type": "json_schema", "json_schema": {"const": 1}}, "</a>")


def triggered(**fields: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<a"], "tags": [ONE], **fields}


def times(kind: str, content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": kind, "content": content, **fields}


def compiled(form: dict[str, Any], vocabulary: Vocabulary = BYTES) -> GuidanceGrammar:
    value = json.dumps({"type": "structural_tag", "format": form})
    text = grammar_of(Constraint("structural_tag", value), "")
    check(text, SCHEMA)
    return GuidanceGrammar(text, vocabulary, step=SCHEMA)


def verdicts(form: dict[str, Any], texts: list[str]) -> list[str]:
    """Return the texts that the form accepts."""
    grammar = compiled(form)
    return [text for text in texts if accepts_text(grammar.matcher(), text)]


CALLS = ["", "x", "<a>1</a>", "<a>1</a>x", "x<a>1</a>", "x<a>1</a>y", "<a>1</a><a>1</a>",
         "<a>1</a>y<a>1</a>z", "x<a>2</a>", "<a>1</a>x<a"]  # fmt: skip


@pytest.mark.parametrize(
    ("some", "first", "right"),
    [
        (False, False, CALLS[:8]),
        (False, True, ["", "x", "<a>1</a>", "x<a>1</a>"]),
        (True, False, ["<a>1</a>", "<a>1</a>x", "<a>1</a><a>1</a>", "<a>1</a>y<a>1</a>z"]),
        (True, True, ["<a>1</a>"]),
    ],
)
def test_flags_of_triggered_tags(some: bool, first: bool, right: list[str]) -> None:
    """``at_least_one``: no free text before the first tag. ``stop_after_first``: none behind."""
    assert verdicts(triggered(at_least_one=some, stop_after_first=first), CALLS) == right


FORMATS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    # Free text without some strings
    ({**ANY, "excludes": ["no", "x y"]}, ["", "n", "on", "x  y"], ["no", "noo", "nno", "ax y"]),
    (triggered(excludes=["no"]), ["", "xn<a>1</a>o", "on"], ["no", "<a>1</a>no"]),
    (triggered(excludes=["x<"]), ["", "<a>1</a>", "y<a>1</a>"], ["x<", "x<a>1</a>"]),
    (triggered(excludes=["a"]), ["", "<"], ["<a>1</a>", "a"]),
    (tag("<t>", {**ANY, "excludes": ["</t>"]}, "</t>"), ["<t>x</t>"], ["<t></t></t>"]),
    ({**ANY, "max_chars": 2}, ["", "é日"], ["abc"]),
    # Free text that ends at what follows
    (sequence(ANY, const("</t>"), const("!")), ["</t>!", "x</t>!"], ["", "x", "x</t>", "x</t>y"]),
    (sequence(ANY, times("optional", const(",")), ONE), ["<a>1</a>", "x,<a>1</a>"], ["x,", ",1"]),
    (sequence(triggered(), const("end")), ["end", "x<a>1</a>yend"], ["", "<a>1end"]),
    (sequence(ANY, either(const("."), ONE)), [".", "x.", "x<a>1</a>"], ["", "x", ".."]),
    (tag("<t>", triggered(), "</t>"), ["<t></t>", "<t>x<a>1</a>y</t>"], ["<t>x", "<t>x</t>y"]),
    (tag("<t>", sequence(const("a"), ANY), "</t>"), ["<t>a</t>", "<t>ab</t>"], ["<t>b</t>"]),
    (tag("<t>", {"type": "regex", "pattern": ".*"}, "</t>"), ["<t>x</t>"], ["<t>x", "<t>x</t>y"]),
    # Tags
    (tag("", const("A"), "</a>"), ["A</a>"], ["A", "</a>"]),
    (tag("", ANY, "</a>"), ["</a>", "x</a>"], ["x", "x</a>y"]),
    (tag("<", ANY, [">", "/>"]), ["<x>", "<x/>"], ["<x", "<>>"]),
    (tag("<", const("A"), [">", ""]), ["<A", "<A>"], ["<", "<AA"]),
    # Repeats
    (times("optional", const("A")), ["", "A"], ["AA"]),
    (times("star", ONE), ["", "<a>1</a>", "<a>1</a><a>1</a>"], ["x", *NO]),
    (times("plus", ONE), ["<a>1</a>", "<a>1</a><a>1</a>"], ["", *NO]),
    (times("repeat", const("A"), min=1, max=3), ["A", "AAA"], ["", "AAAA"]),
    (times("repeat", const("A"), min=2, max=-1), ["AA", "AAAA"], ["", "A"]),
    (times("repeat", ANY, min=0, max=0), [""], ["A"]),
    (times("star", ANY), ["", "x y"], []),
    (times("star", sequence(ANY, const(";"))), ["", "x;", ";y;"], ["x", "x;y"]),
    (sequence(times("plus", tag("<", ANY, ">")), const(".")), ["<x>.", "<x><y>."], [".", "<x>"]),
    # Alternatives
    (either(triggered(at_least_one=True), sequence(const("no "), ANY)),
     ["<a>1</a>", "<a>1</a>x", "no ", "no x"], ["", "x", "n", "no x<a>1</a>"[:2]]),
    (either(triggered(at_least_one=True, stop_after_first=True), {**ANY, "excludes": ["<a"]}),
     ["<a>1</a>", "", "x"], ["<a>1</a>x", "x<a>1</a>"]),
    ({"type": "dispatch", "rules": [["<a", const("A")], ["<b", const("B")]], "excludes": ["no"]},
     ["", "x<aAy<bB"], ["<aB", "no"]),
    ({"type": "dispatch", "rules": [["<a", const("A")]], "loop": False}, ["x", "x<aA"], ["<aAy"]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "right", "wrong"), FORMATS, ids=range(len(FORMATS)))
def test_formats(form: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    assert verdicts(form, right + wrong) == right


def test_a_tag_as_xgrammar_writes_it() -> None:
    """Every field stands in the JSON, most of them at their defaults."""
    content = {"type": "json_schema", "json_schema": {"const": 1}, "style": "json",
               "any_order": False, "max_whitespace_cnt": None, "excludes": []}  # fmt: skip
    form = {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag("<a>", content, "</a>")],
            "at_least_one": False, "stop_after_first": False, "excludes": []}  # fmt: skip
    thought = tag("<t>", {**ANY, "excludes": [], "max_tokens": None, "max_chars": None}, "</t>")
    assert verdicts(sequence(thought, form), ["<t>x</t>y<a>1</a>", "<t>x</t><a>2</a>"]) == [
        "<t>x</t>y<a>1</a>"
    ]


def test_white_space_of_one_part() -> None:
    part = {"type": "json_schema", "json_schema": {"const": [1, 2]}, "max_whitespace_cnt": 1}
    assert verdicts(part, ["[1,2]", "[ 1 ,\n2 ]", "[1,  2]"]) == ["[1,2]", "[ 1 ,\n2 ]"]


CALL = {
    "type": "object",
    "$defs": {"point": {"type": "array", "items": {"type": "integer"}}},
    "properties": {
        "name": {"type": "string", "description": "any"},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "at": {"type": "array", "items": {"$ref": "#/$defs/point"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
STYLES = [
    ("qwen_xml", "<parameter={}>", "</parameter>"),
    ("minimax_xml", '<parameter name="{}">', "</parameter>"),
    ("glm_xml", "<arg_key>{}</arg_key><arg_value>", "</arg_value>"),
    ("deepseek_xml", '<｜DSML｜parameter name="{}" string="{}">', "</｜DSML｜parameter>"),
]


@pytest.mark.parametrize(("style", "begin", "end"), STYLES)
def test_styles_of_json_schema(style: str, begin: str, end: str) -> None:
    """Strings are text, all else is JSON; properties are tags in the order of the schema."""

    def one(name: str, value: str) -> str:
        return begin.format(name, str(name in ("name", "kind")).lower()) + value + end

    name, age = one("name", 'Bob "x"\n<b>'), one("age", "3")
    right = [name, name + age, f"\n{name}\n{age}\n", one("name", "") + one("age", "\n3 "),
             name + one("kind", "b"), name + age + one("at", "[[1,2],[]]")]  # fmt: skip
    wrong = ["", age, age + name, name + name, name + one("age", "x"), name + one("kind", '"a"'),
             name + one("kind", "c"), name + one("at", '["x"]'), name + one("more", "1"),
             name[:-1]]  # fmt: skip
    form = {"type": "json_schema", "json_schema": CALL, "style": style}
    assert verdicts(form, right + wrong) == right
    whole = tag("<f>", form, "\n</f>")
    assert verdicts(whole, [f"<f>\n{name}\n</f>", f"<f>{age}\n</f>"]) == [f"<f>\n{name}\n</f>"]


def styled(properties: Any, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, **more}
    return {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}


BAD = [
    ({"type": "json_schema", "json_schema": {}, "style": "xml"}, "/style: 'xml' is not supported"),
    (styled({"a": {"type": "string", "maxLength": 3}}), "/properties/a: in style 'qwen_xml'"),
    (styled({"a": {"anyOf": [{"type": "string"}]}}), "/json_schema/properties/a: in style"),
    (styled({"a": {"type": "integer", "$ref": "#/x"}}), "/json_schema/properties/a/\\$ref"),
    (styled({}, required=["a"]), "/json_schema/required/0: 'a' is none of the properties"),
    (styled({}, minProperties=1), "/json_schema/minProperties: not supported in style"),
    (styled({"a": {}}, type="array"), "must be that of an object"),
    ({"type": "json_schema", "json_schema": {}, "any_order": True}, "/any_order: True is not supp"),
    ({"type": "json_schema", "json_schema": {}, "max_whitespace_cnt": 9}, "from 0 to 8"),
    ({**ANY, "max_tokens": 3}, "/max_tokens: 3 is not supported; leave it out"),
    ({**ANY, "max_chars": 10**9}, "/max_chars: is 1000000000; it must be .* 0 to 4096"),
    (times("repeat", const("A"), min=3, max=2), "/max: is 2, less than min, which is 3"),
    (times("repeat", const("A"), min=-1, max=2), "/min: is -1; it must be .* 0 to 4096"),
    (times("star", sequence(const("-"), ANY)), "/content: ends in free text, which cannot be rep"),
    (times("repeat", triggered(at_least_one=True), min=2, max=2), "/content: ends in free text"),
    (sequence(times("star", sequence(ANY, const(";"))), const("!")), "begins with free text"),
    (times("repeat", either(sequence(ANY, const(";")), const("7")), min=2, max=-1),
     "/content: begins with free text in one of its alternatives"),
    (times("plus", sequence(either(sequence(ANY, const(";")), const("7")), const("!"))),
     "/content: begins with free text in one of its alternatives"),
    (triggered(at_least_one=1), "/at_least_one: 1 is not true or false"),
    (tag("<", ANY, []), "/end: must be a list, not empty"),
    ({"type": "dispatch", "rules": [["<a"]]}, "/rules/0: must be a list of a string and a format"),
    (sequence(ANY, ANY), "/elements/0: free text must end at a literal"),
    (tag("<", times("star", tag("<", ANY, "")), ""), "/content/content: free text must|be repeat"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "message"), BAD, ids=range(len(BAD)))
def test_refusals_say_where_and_what(form: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        compiled(form)


def test_many_formats_behind_each_other() -> None:
    """A long sequence is no deep one; alternatives in free text that go too deep are refused."""
    flat = sequence(*(times("optional", const(f"{n};")) for n in range(500)))
    assert verdicts(flat, ["", "3;400;", "4;3;"]) == ["", "3;400;"]
    ends = sequence(*(part for n in range(400) for part in (ANY, const(f"{n};"))))
    whole = "".join(f"x{n};" for n in range(400))
    assert verdicts(ends, [whole, "0;"]) == [whole]
    loose = either(const("."), sequence(const("-"), ANY))
    deep = sequence(*(part for n in range(300) for part in (loose, const(f"{n};"))))
    with pytest.raises(GrammarError, match="too many alternatives that end in free text"):
        compiled(deep)


def test_control_tokens_end_free_text() -> None:
    known = Vocabulary((*BYTES.tokens[:256], b"<end>", b"<t>", b"</t>"), 259, (256,),
                       frozenset({256, 257, 258}), BYTES.encode)  # fmt: skip
    grammar = compiled(sequence(tag("", ANY, "</t>"), triggered(stop_after_first=True)), known)

    def runs(*parts: str | int) -> bool:
        matcher = grammar.matcher()
        tokens = [t for part in parts for t in ([part] if isinstance(part, int) else part.encode())]
        return all(matcher.advance(token) for token in tokens) and matcher.accepting

    assert runs("thought", 258, "x<a>1</a>")
    assert runs("thought</t>x<a>1</a>")
    assert runs(258)
    assert not runs(258, "x<a>1</a>y")
    assert not runs("thought", 257, 258)
    assert not runs("thought")


# -- formats made at random, against a reader of formats -----------------------------------------


def ends_of(form: dict[str, Any], text: str, at: int, ends: tuple[str, ...] = ()) -> set[int]:
    """Offsets at which a part of ``form`` that begins at ``at`` may end. ``ends``: of the innermost
    tag."""
    kind = form["type"]
    if kind == "const_string":
        return {at + len(form["value"])} if text.startswith(form["value"], at) else set()
    if kind == "regex":
        return {n for n in range(at, len(text) + 1) if re.fullmatch(form["pattern"], text[at:n])}
    if kind == "any_text":
        return set(free(text, at, (*form.get("excludes", ()), *ends)))
    if kind == "or":
        return {n for one in form["elements"] for n in ends_of(one, text, at, ends)}
    if kind == "sequence":
        found = {at}
        for one in form["elements"]:
            found = {n for start in found for n in ends_of(one, text, start, ends)}
        return found
    if kind == "tag":
        closing = form["end"] if isinstance(form["end"], list) else [form["end"]]
        inner = tuple(one for one in closing if one)
        if not text.startswith(form["begin"], at):
            return set()
        stops = ends_of(form["content"], text, at + len(form["begin"]), inner)
        return {n + len(one) for n in stops for one in closing if text.startswith(one, n)}
    if kind == "triggered_tags":
        return ends_of_triggered(form, text, at, ends)
    low, high = {"optional": (0, 1), "star": (0, 99), "plus": (1, 99)}.get(
        kind, (form.get("min", 0), form.get("max", 99))
    )
    many, found, reached = {at}, {at} if low == 0 else set[int](), {at}
    for n in range(1, high + 1 if high >= 0 else 99):
        many = {end for start in many for end in ends_of(form["content"], text, start, ends)}
        found |= many if n >= low else set()
        if not many - reached and n >= low:
            break
        reached |= many
    return found


def free(text: str, at: int, without: tuple[str, ...]) -> Iterator[int]:
    for end in range(at, len(text) + 1):
        if any(one in text[at:end] for one in without):
            return
        yield end


def ends_of_triggered(form: dict[str, Any], text: str, at: int, ends: tuple[str, ...]) -> set[int]:
    without = (*form["excludes"], *ends)
    behind = (lambda n: {n}) if form["stop_after_first"] else (lambda n: set(loose(n)))

    def tags(start: int) -> set[int]:
        return {n for one in form["tags"] for n in ends_of(one, text, start)}

    def loose(start: int) -> Iterator[int]:
        """Free text, and tags in it."""
        for end in free(text, start, without):
            if not any(one in text[start:end] for one in form["triggers"]):
                yield end
                for n in tags(end):
                    trigger = next(t for t in form["triggers"] if text.startswith(t, end))
                    whole = text[start : end + len(trigger)]
                    if not any(one in whole for one in form["excludes"]):
                        yield from behind(n)

    if form["at_least_one"]:
        return {end for n in tags(at) for end in behind(n)}
    return set(loose(at))


class Formats:
    """Formats at random, and texts of them. No literal of ``sharp`` ones begins another or stands
    in free text, so that a text is read in one way only."""

    def __init__(self, seed: str, sharp: bool) -> None:
        self.dice = random.Random(seed)
        self.sharp = sharp
        self.count = 0

    def literal(self) -> str:
        self.count += 1
        return f"({self.count})" if self.sharp else self.dice.choice(["a", "b", "ab", "<", "<a"])

    def form(self, depth: int) -> dict[str, Any]:
        dice = self.dice
        kinds = ["const_string", "regex", "any_text"]
        if depth > 0:
            kinds = [
                "or",
                "sequence",
                "tag",
                "triggered_tags",
                "optional",
                "star",
                "repeat",
                *kinds,
            ]
        kind = dice.choice(kinds)
        if kind == "const_string":
            return const(self.literal())
        if kind == "regex":
            simple = ["[ab]", "a|bb", "c?"]
            return {"type": kind, "pattern": f"\\[{self.literal()[1:-1]}-[0-9]?\\]" if self.sharp
                    else dice.choice(simple)}  # fmt: skip
        if kind == "any_text":
            return {**ANY, "excludes": [self.literal()][: dice.choice([0, 0, 1])]}
        if kind in ("or", "sequence"):
            return {
                "type": kind,
                "elements": [self.form(depth - 1) for _ in range(dice.choice([1, 2, 3]))],
            }
        if kind == "tag":
            return self.tag(depth)
        if kind == "triggered_tags":
            tags = [self.tag(depth) for _ in range(dice.choice([1, 2]))]
            return {"type": kind, "tags": tags, "triggers": sorted({t["begin"] for t in tags}),
                    "at_least_one": dice.random() < 0.5, "stop_after_first": dice.random() < 0.5,
                    "excludes": []}  # fmt: skip
        low = dice.choice([0, 1, 2])
        more = {"min": low, "max": dice.choice([-1, low + 1])} if kind == "repeat" else {}
        return times(kind, self.form(depth - 1), **more)

    def tag(self, depth: int) -> dict[str, Any]:
        end: Any = self.literal()
        return tag(
            self.literal(), self.form(depth - 1), self.dice.choice([end, [end, self.literal()]])
        )


def sample(form: dict[str, Any], dice: random.Random) -> str:
    """A text of a sharp format."""
    kind = form["type"]
    if kind == "const_string":
        return str(form["value"])
    if kind == "regex":
        return str(form["pattern"].replace("\\", "").replace("[0-9]?", dice.choice(["", "7"])))
    if kind == "any_text":
        return "".join(dice.choices("xyé ", k=dice.choice([0, 1, 3])))
    if kind == "or":
        return sample(dice.choice(form["elements"]), dice)
    if kind == "sequence":
        return "".join(sample(one, dice) for one in form["elements"])
    if kind == "tag":
        end = form["end"] if isinstance(form["end"], str) else dice.choice(form["end"])
        return f"{form['begin']}{sample(form['content'], dice)}{end}"
    if kind == "triggered_tags":
        first = form["stop_after_first"]
        calls = dice.choice([1] if first else [1, 2]) if form["at_least_one"] or first else 0
        text = "" if form["at_least_one"] else sample(ANY, dice)
        for _ in range(calls):
            text += sample(dice.choice(form["tags"]), dice) + ("" if first else sample(ANY, dice))
        return text
    low = form.get("min", 0)
    high = max(form.get("max", 1), low)
    content = form["content"]
    closed = content.get("at_least_one") and content.get("stop_after_first")
    if content["type"] in ("any_text", "triggered_tags") and not closed:
        low, high = min(low, 1), 1  # repeated free text is free text
    return "".join(sample(content, dice) for _ in range(dice.choice([low, high])))


def takes(grammar: GuidanceGrammar, text: str) -> bool:
    return accepts_text(grammar.matcher(), text)


ALPHABET = {*b"ab<>()[]-0123456789", END}


def written(grammar: GuidanceGrammar, dice: random.Random, most: int) -> str | None:
    """A text that the masks allow, or None where it grows longer than ``most`` bytes, or ends with
    an error: llguidance panics in rare states of free text."""
    matcher, data = grammar.matcher(), b""
    while len(data) < most:
        try:
            mask = matcher.mask()
        except GrammarError as error:
            if "panic" not in str(error):
                raise
            return None
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        allowed = [n for n in np.flatnonzero(bits).tolist() if n in ALPHABET]
        if not allowed:
            return None
        if END in allowed and (dice.random() < 0.3 or allowed == [END]):
            return data.decode()
        byte = dice.choice([n for n in allowed if n != END])
        assert matcher.advance(byte)
        data += bytes([byte])
    return None


def compiled_or_refused(form: dict[str, Any]) -> GuidanceGrammar | None:
    """None where free text has no end."""
    try:
        return compiled(form)
    except GrammarError as error:
        if "free text" in str(error):
            return None
        raise


def mixed(form: dict[str, Any]) -> bool:
    """Whether an ``or`` in the format begins with free text in some of its alternatives only. Free
    text runs over what the others begin with: a text may be read in two ways."""
    inner = [*form.get("elements", ()), *form.get("tags", ())]
    inner += [form["content"]] if "content" in form else []
    return (form["type"] == "or" and begins_mixed(form)) or any(map(mixed, inner))


@pytest.mark.slow
def test_texts_of_a_format_that_is_read_in_one_way_are_allowed() -> None:
    found = 0
    for n in range(ROUNDS):
        make = Formats(f"sharp {n}", True)
        form = make.form(3)
        grammar = None if mixed(form) else compiled_or_refused(form)
        if grammar is None:
            continue
        for text in {sample(form, make.dice) for _ in range(8)}:
            assert len(text) in ends_of(form, text, 0), (form, text)
            assert takes(grammar, text), (form, text)
            found += 1
    assert found > 2 * ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("sharp", [False, True])
def test_no_text_is_allowed_that_is_not_of_the_format(sharp: bool) -> None:
    found = refused = 0
    for n in range(ROUNDS):
        make = Formats(f"tags {sharp} {n}", sharp)
        form = make.form(3)
        grammar = compiled_or_refused(form)
        if grammar is None:
            refused += 1
            continue
        texts = ["".join(make.dice.choices("ab<c", k=make.dice.randint(0, 5))) for _ in range(40)]
        made = [written(grammar, make.dice, 40) for _ in range(8)]
        for text in [*texts, *(text for text in made if text is not None)]:
            if takes(grammar, text):
                assert len(text) in ends_of(form, text, 0), (form, text)
                found += 1
        assert all(takes(grammar, text) for text in made if text is not None)
    assert found > ROUNDS
    assert refused < ROUNDS // 3
