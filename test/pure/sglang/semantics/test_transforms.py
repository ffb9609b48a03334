"""Transforms: what each makes of a text, what it refuses, and how it is sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.semantics import transforms as tf

READ = [
    (tf.StripSpace(), " a b\n", "a b"),
    (tf.RegexGroup(r"(\d+) apples", 1), "I have 12 apples", "12"),
    (tf.RegexGroup(r"(?P<who>\w+) ran", "who"), "she ran", "she"),
    (tf.JsonPath(("a", 0)), '{"a": [1, 2]}', 1),
    (tf.JsonPath(("a", -1)), {"a": [1, 2]}, 2),
    (tf.JsonPath(), 'Sure:\n```json\n{"x": null}\n```\nDone.', {"x": None}),
    (tf.JsonPath(("x",)), 'The answer is {"x": "y"} as you see', "y"),
    (tf.TextList(), 'a, "b, c" ,d\n', ["a", "b, c", "d"]),
    (tf.TextList("numbered"), "Here:\n1. one\n 2)  two \n", ["one", "two"]),
    (tf.TextList("bullets"), "- one\n* two\ntext", ["one", "two"]),
    (tf.TextList("lines"), "\n one \n\ntwo", ["one", "two"]),
    (tf.EnumOption(("Red", "Green")), " red\n", "Red"),
    (tf.TruthWord(), "Yes, it is.", True),
    (tf.TruthWord(), "NO", False),
    (tf.TruthWord(("oui",), ("non",)), "non!", False),
    (tf.NumberText(), " 1,234 ", 1234),
    (tf.NumberText(), "-1.50", -1.5),
    (tf.NumberText(), "2e3", 2000.0),
    (tf.DateText(), "on 2024-3-1.", "2024-03-01"),
    (tf.DateText("%B %d, %Y"), "It was March 3, 2024", "2024-03-03"),
    (tf.DateText("%d %b %Y %H:%M"), "9 feb 2024 7:05", "2024-02-09T07:05:00"),
    (tf.XmlElement("code"), "x <code lang='py'>\n a<b \n</code>", "a<b"),
    (tf.TextTemplate("<{value}> {{x}}"), "t", "<t> {x}"),
    (tf.TextTemplate("{a}-{b}"), {"a": 1, "b": "z"}, "1-z"),
    (tf.JoinedTexts(", "), ["a", 1, ["b", "c"]], "a, 1, b"),
    (tf.StripSpace(), [" first ", "second"], "first"),
    (tf.StripSpace(), 3, "3"),
]


@pytest.mark.parametrize(("transform", "value", "made"), READ)
def test_transform_reads(transform, value, made):
    assert transform.apply(value) == made
    assert type(transform.apply(value)) is type(made)


@pytest.mark.parametrize(("transform", "value"), [(t, v) for t, v, _ in READ])
def test_transform_round_trips(transform, value):
    sent = json.loads(json.dumps(transform.to_json()))
    assert tf.transform_of(sent) == transform
    assert tf.transform_of(sent).apply(value) == transform.apply(value)


REFUSED = [
    (tf.RegexGroup("b"), "aaa", "nothing in the text matches"),
    (tf.RegexGroup("(a)|(b)", 2), "a", "took no part"),
    (tf.RegexGroup("a"), "a" * 65_537, "at most 65536"),
    (tf.JsonPath(("a",)), '{"b": 1}', r"\$ has no field 'a'; it has \['b'\]"),
    (tf.JsonPath(("a", 1)), '{"a": [0]}', r"\$\['a'\] has 1 entries, none at 1"),
    (tf.JsonPath(("a", "b")), '{"a": [0]}', r"\$\['a'\] is no object"),
    (tf.JsonPath((0,)), '{"a": [0]}', r"\$ is no list"),
    (tf.JsonPath(), "no json", "not JSON"),
    (tf.JsonPath(), '{"a": 1', "Expecting"),
    (tf.JsonPath(), "[NaN]", "no finite number"),
    (tf.JsonPath(), "[1e999]", "no finite number"),
    (tf.JsonPath(), "[" + "9" * 30 + "]", "no whole number of 64 bits"),
    (tf.JsonPath(), "[" * 65 + "]" * 65, "levels deep"),
    (tf.JsonPath(), "[" * 500_000, "cannot read"),
    (tf.JsonPath(), '"\\ud800"', "surrogates not allowed"),
    (tf.TextList(), " , ", "no entry of a list"),
    (tf.TextList("lines"), "a\n" * 10_001, "at most 10000"),
    (tf.EnumOption(("a", "b")), "c", "none of"),
    (tf.EnumOption(("a", "A")), "á", "none of"),
    (tf.TruthWord(), "yes and no", "both a word"),
    (tf.TruthWord(), "perhaps", "no word"),
    (tf.NumberText(), "one", "take one out of it"),
    (tf.NumberText(), ".", "it is no number"),
    (tf.NumberText(), "1" * 401, "at most 400"),
    (tf.NumberText(), "1" * 30, "64 bits"),
    (tf.DateText(), "2024-13-01", "month must be in 1..12"),
    (tf.DateText(), "today", "no date"),
    (tf.XmlElement("a"), "<a>never closed", "no element <a>"),
    (tf.TextTemplate("{x}"), "t", "no field 'x'"),
    (tf.TextTemplate("{value}" * 20), "t" * 65_536, "more than 1048576"),
    (tf.JoinedTexts(), "text", "it is no list"),
    (tf.StripSpace(), "a" * (tf.MOST_TEXT + 1), "at most 1048576 are read"),
]


@pytest.mark.parametrize(("transform", "value", "message"), REFUSED)
def test_transform_refuses_value(transform, value, message):
    with pytest.raises(tf.TransformError, match=message) as caught:
        transform.apply(value)
    assert f"transform {transform.op!r} cannot read" in str(caught.value)
    assert len(str(caught.value)) < 700


MALFORMED = [
    ("strip", "an object with an op"),
    ({"op": 3}, "an object with an op"),
    ({"op": "eval"}, "'eval' is unknown; use one of"),
    ({"op": "strip", "x": 1}, "has no field 'x'"),
    ({"op": "regex"}, "needs its field 'pattern'"),
    ({"op": "regex", "pattern": "(?=a)"}, "(?i)refused|refuses"),
    ({"op": "regex", "pattern": "(a)\\1"}, "refused|refuses"),
    ({"op": "regex", "pattern": "a" * 1001}, "1 to 1000 characters"),
    ({"op": "regex", "pattern": "(.{999}){9}"}, "refused|refuses"),
    ({"op": "regex", "pattern": "a", "group": -1}, "number or the name"),
    ({"op": "regex", "pattern": "a", "group": True}, "number or the name"),
    ({"op": "regex", "pattern": "(a)", "group": 2}, "no group 2; it has groups 0 to 1$"),
    ({"op": "regex", "pattern": "(?i)a", "group": 1}, "no group 1; it has groups 0 to 0$"),
    ({"op": "regex", "pattern": "(?P<n>a)", "group": "x"}, "no group 'x'; it has .* and .'n'.$"),
    ({"op": "json", "path": "a"}, "a list of at most 32"),
    ({"op": "json", "path": [1.5]}, "each step is"),
    ({"op": "json", "path": ["a"] * 33}, "at most 32"),
    ({"op": "list", "style": "yaml"}, "use one of"),
    ({"op": "enum", "options": []}, "1 to 256 texts"),
    ({"op": "enum", "options": [" a"]}, "no space around"),
    ({"op": "enum", "options": [1]}, "1 to 256 texts"),
    ({"op": "bool", "true": ["two words"]}, "each is one word"),
    ({"op": "date", "format": "%Y-%m"}, "a year, a month and a day"),
    ({"op": "date", "format": "%Y-%m-%d %Z"}, "once"),
    ({"op": "date", "format": "%Y-%m-%d %b"}, "once"),
    ({"op": "xml", "tag": "a b"}, "without < and >"),
    ({"op": "template", "text": "{0}"}, "written twice"),
    ({"op": "template", "text": "{value.__class__}"}, "written twice"),
    ({"op": "join", "separator": 1}, "at most 1000"),
]


@pytest.mark.parametrize(("body", "message"), MALFORMED)
def test_malformed_transform_refused(body, message):
    with pytest.raises(tf.TransformError, match=message):
        tf.transform_of(body)


def test_chain_applies_in_order():
    chain = [{"op": "json", "path": ["items"]}, {"op": "join", "separator": "+"}]
    assert tf.transformed(tf.transforms_of(chain), '{"items": ["a", "b"]}') == "a+b"
    with pytest.raises(tf.TransformError, match="at most 16"):
        tf.transforms_of([{"op": "strip"}] * 17)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.sampled_from([t for t, _, _ in READ]), VALUES)
@settings(max_examples=400, deadline=None)
def test_value_is_json_or_refused(transform, value):
    try:
        made = transform.apply(value)
    except tf.TransformError:
        return
    again = json.loads(json.dumps(made)) if made is not value else made
    assert again == made or made is value or isinstance(transform, tf.JsonPath)
