"""Transforms: a closed set of pure functions from a value's text to another value.

The client applies them to a program that it interprets, the server to one that it runs itself. A
transform on the wire is an object: ``{"op": "json", "path": ["a", 0]}``. A value is what JSON can
hold; a transform reads it as the program would append it (``text_of``).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sglang.semantics import linear_regex
from sglang.semantics.json_text import json_in, real_number, whole_number

MOST_TEXT = 1 << 20  # characters that a transform reads or makes
MOST_ENTRIES = 10_000  # entries of a list that a transform makes
MOST_CHAIN = 16  # transforms of one value
MOST_WORDS = 256  # options of an enum, words of a bool
MOST_PATH = 32  # steps of a JSON path
MOST_NUMBER = 400  # characters of a number


class TransformError(ValueError):
    """A value that a transform cannot read, or a transform that makes no sense."""


def text_of(value: Any) -> str:
    """Return a value as text; of several texts the first, which the program goes on with."""
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) else str(value)


class Transform:
    """Base of the transforms; each is frozen, checked when it is made, and compares by value."""

    op: ClassVar[str]

    def apply(self, value: Any) -> Any:
        """Return the transformed value. Raise TransformError."""
        try:
            text = text_of(value)
            if len(text) > MOST_TEXT:
                raise ValueError(f"it has {len(text)} characters; at most {MOST_TEXT} are read")
            return self.read(value, text)
        except TransformError:
            raise
        except (ValueError, RecursionError) as error:
            raise TransformError(
                f"transform {self.op!r} cannot read {_shown(value)}: {error}"
            ) from error

    def read(self, value: Any, text: str) -> Any:
        """Return the transformed value. Raise ValueError. ``text``: the value as text."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the transform as it is sent; fields that have their default are left out."""
        body: dict[str, Any] = {"op": self.op}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value != f.default:
                body[f.name] = list(value) if isinstance(value, tuple) else value
        return body

    def _refuse(self, field: str, expected: str) -> TransformError:
        value = getattr(self, field)
        return TransformError(f"{field} of transform {self.op!r} is {value!r:.60}; {expected}")

    def _check_text(self, field: str, most: int) -> None:
        value = getattr(self, field)
        if not isinstance(value, str) or not 0 < len(value) <= most:
            raise self._refuse(field, f"give a text of 1 to {most} characters")

    def _check_words(self, field: str) -> None:
        words = getattr(self, field)
        texts = isinstance(words, tuple) and all(isinstance(word, str) for word in words)
        if not texts or not 0 < len(words) <= MOST_WORDS:
            raise self._refuse(field, f"give a list of 1 to {MOST_WORDS} texts")
        if any(not 0 < len(word) <= 1000 or word != word.strip() for word in words):
            raise self._refuse(field, "each has 1 to 1000 characters and no space around it")


def _shown(value: Any) -> str:
    return f"{value[:60]!r}…" if isinstance(value, str) and len(value) > 60 else f"{value!r:.60}"


@dataclass(frozen=True)
class StripSpace(Transform):
    """The text without white space around it."""

    op = "strip"

    def read(self, value: Any, text: str) -> str:
        return text.strip()


@dataclass(frozen=True)
class RegexGroup(Transform):
    """The first match of ``pattern``, which RE2 takes, or its group by number or name."""

    op = "regex"
    pattern: str
    group: int | str = 0

    def __post_init__(self) -> None:
        self._check_text("pattern", linear_regex.MOST_PATTERN)
        if type(self.group) is not str and not (type(self.group) is int and self.group >= 0):
            raise self._refuse("group", "give the number or the name of a group")
        try:
            linear_regex.verify_group(self.pattern, self.group)
        except ValueError as error:
            raise TransformError(str(error)) from error

    def read(self, value: Any, text: str) -> str:
        return linear_regex.search(self.pattern, self.group, text)


@dataclass(frozen=True)
class JsonPath(Transform):
    """The JSON value in the text, or what ``path`` leads to: names of fields, indices of lists.

    The text is JSON, has a fenced block of it, or an object or list begins somewhere in it.
    """

    op = "json"
    path: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.path, tuple) or len(self.path) > MOST_PATH:
            raise self._refuse("path", f"give a list of at most {MOST_PATH} names and numbers")
        if any(type(key) not in (str, int) for key in self.path):
            raise self._refuse("path", "each step is the name of a field or an index of a list")

    def read(self, value: Any, text: str) -> Any:
        found = value if isinstance(value, (dict, list)) else json_in(text)
        for depth, key in enumerate(self.path):
            here = "$" + "".join(f"[{step!r}]" for step in self.path[:depth])
            found = _entry(found, key, here)
        return found


def _entry(value: Any, key: str | int, here: str) -> Any:
    if isinstance(key, str):
        if not isinstance(value, dict):
            raise ValueError(f"{here} is no object, so it has no field {key!r:.60}")
        if key not in value:
            raise ValueError(f"{here} has no field {key!r:.60}; it has {list(value)!r:.60}")
        return value[key]
    if not isinstance(value, list):
        raise ValueError(f"{here} is no list, so it has no entry {key}")
    if not -len(value) <= key < len(value):
        raise ValueError(f"{here} has {len(value)} entries, none at {key}")
    return value[key]


ITEM_OF = {
    "numbered": re.compile(r"\d+[.)]\s+(.+)"),
    "bullets": re.compile(r"[-*•]\s+(.+)"),
    "lines": re.compile(r"(.+)"),
}


@dataclass(frozen=True)
class TextList(Transform):
    """The entries of a list in the text, without white space around them.

    ``style``: "comma" (quotes as in CSV), "numbered" ("1. ..." or "1) ..."), "bullets" or "lines".
    """

    op = "list"
    style: str = "comma"

    def __post_init__(self) -> None:
        if self.style != "comma" and self.style not in ITEM_OF:
            raise self._refuse("style", f"use one of {['comma', *ITEM_OF]}")

    def read(self, value: Any, text: str) -> list[str]:
        item = ITEM_OF.get(self.style)
        if item is None:
            entries = _comma_separated(text)
        else:
            lines = map(str.strip, text.splitlines())
            entries = [found[1] for line in lines if (found := item.fullmatch(line))]
        if not entries:
            raise ValueError(f"it has no entry of a list in style {self.style!r}")
        if len(entries) > MOST_ENTRIES:
            raise ValueError(f"it has {len(entries)} entries; at most {MOST_ENTRIES}")
        return entries


def _comma_separated(text: str) -> list[str]:
    try:
        rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
        entries = [entry.strip() for row in rows for entry in row]
    except csv.Error as error:
        raise ValueError(f"it is no list with commas ({error})") from None
    return [entry for entry in entries if entry]


@dataclass(frozen=True)
class EnumOption(Transform):
    """One of ``options``, which the text is, whatever its case and the white space around it."""

    op = "enum"
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        self._check_words("options")

    def read(self, value: Any, text: str) -> str:
        stripped = text.strip()
        if stripped in self.options:
            return stripped
        same = [one for one in self.options if one.casefold() == stripped.casefold()]
        if len(same) != 1:
            raise ValueError(f"it is none of {list(self.options)!r:.200}")
        return same[0]


WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TruthWord(Transform):
    """True or false: which of the words ``true`` and ``false`` stands in the text."""

    op = "bool"
    true: tuple[str, ...] = ("true", "yes")
    false: tuple[str, ...] = ("false", "no")

    def __post_init__(self) -> None:
        for field in ("true", "false"):
            self._check_words(field)
            if any(WORD.fullmatch(word) is None for word in getattr(self, field)):
                raise self._refuse(field, "each is one word")

    def read(self, value: Any, text: str) -> bool:
        words = {word.casefold() for word in WORD.findall(text)}
        yes, no = (
            not words.isdisjoint(word.casefold() for word in known)
            for known in (self.true, self.false)
        )
        if yes == no:
            both = "both a word" if yes else "no word"
            raise ValueError(f"it has {both} of {list(self.true)} and of {list(self.false)}"[:300])
        return yes


NUMBER = re.compile(r"[-+]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class NumberText(Transform):
    """The number that the text is; a whole one without a point and exponent. "1,234" is 1234."""

    op = "number"

    def read(self, value: Any, text: str) -> int | float:
        digits = text.strip()
        if len(digits) > MOST_NUMBER:
            raise ValueError(f"it has {len(digits)} characters; a number has at most {MOST_NUMBER}")
        found = NUMBER.fullmatch(digits)
        if found is None or not (found[1] or found[3]):
            raise ValueError("it is no number; take one out of it by 'regex' first")
        digits = digits.replace(",", "")
        return real_number(digits) if found[3] or found[4] else whole_number(digits)


MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
PARTS = {
    "Y": ("year", r"\d{4}"),
    "m": ("month", r"\d{1,2}"),
    "d": ("day", r"\d{1,2}"),
    "H": ("hour", r"\d{1,2}"),
    "M": ("minute", r"\d{1,2}"),
    "S": ("second", r"\d{1,2}"),
    "B": ("month", "|".join(MONTHS)),
    "b": ("month", "|".join(name[:3] for name in MONTHS)),
}


@dataclass(frozen=True)
class DateText(Transform):
    """The date in the text, in ISO 8601: "2024-03-01", with a time where ``format`` has an hour.

    ``format``: %Y %m %d %H %M %S, and %B or %b for English names of months, which are the same on
    every machine.
    """

    op = "date"
    format: str = "%Y-%m-%d"

    def __post_init__(self) -> None:
        self._check_text("format", 100)
        names = re.findall(r"%(.?)", self.format, re.DOTALL)
        parts = [PARTS[name][0] for name in names if name in PARTS]
        if len(parts) < len(names) or len(set(parts)) < len(parts):
            raise self._refuse("format", f"use each of {['%' + name for name in PARTS]} once")
        if not {"year", "month", "day"} <= set(parts):
            raise self._refuse("format", "it needs a year, a month and a day")

    def read(self, value: Any, text: str) -> str:
        from datetime import datetime

        pieces = re.split(r"%(.)", self.format)
        pattern = "".join(
            f"(?P<{PARTS[piece][0]}>{PARTS[piece][1]})" if odd % 2 else re.escape(piece)
            for odd, piece in enumerate(pieces)
        )
        found = re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE | re.ASCII)
        if found is None:
            raise ValueError(f"it has no date {self.format!r}")
        parts = {name: _part(digits) for name, digits in found.groupdict().items()}
        date = datetime(**parts)  # type: ignore[arg-type]
        return date.isoformat() if "hour" in parts else date.date().isoformat()


def _part(digits: str) -> int:
    """A number of a date, also of a month that is given by its name."""
    if digits.isdigit():
        return int(digits)
    names = [name[:3].casefold() for name in MONTHS]
    return names.index(digits[:3].casefold()) + 1


NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class XmlElement(Transform):
    """The content of the first XML element ``tag`` in the text, without space around it."""

    op = "xml"
    tag: str

    def __post_init__(self) -> None:
        self._check_text("tag", 100)
        if NAME.fullmatch(self.tag) is None:
            raise self._refuse("tag", "give the name of an element, without < and >")

    def read(self, value: Any, text: str) -> str:
        opening = re.search(rf"<{re.escape(self.tag)}(\s[^<>]*)?>", text)
        end = text.find(f"</{self.tag}>", opening.end()) if opening else -1
        if opening is None or end < 0:
            raise ValueError(f"it has no element <{self.tag}>…</{self.tag}>")
        return text[opening.end() : end].strip()


FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}|[{}]", re.ASCII)


@dataclass(frozen=True)
class TextTemplate(Transform):
    """``text`` with ``{value}`` in place of the value, and ``{name}`` of the fields of an object.

    ``{{`` and ``}}`` are braces.
    """

    op = "template"
    text: str

    def __post_init__(self) -> None:
        self._check_text("text", 65_536)
        if any(found[0] in "{}" for found in FIELD.finditer(self.text)):
            raise self._refuse("text", "a brace that is no {name} is written twice: {{")

    def read(self, value: Any, text: str) -> str:
        fields = {"value": text, **(value if isinstance(value, dict) else {})}
        pieces, end, length = [], 0, 0
        for found in FIELD.finditer(self.text):
            shown = found[0][0] if found[1] is None else _field(fields, found[1])
            pieces += [self.text[end : found.start()], shown]
            end, length = found.end(), length + len(shown)
            if length > MOST_TEXT:
                raise ValueError(f"the text would have more than {MOST_TEXT} characters")
        return "".join([*pieces, self.text[end:]])


def _field(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        raise ValueError(f"it has no field {name!r:.60}; it has {list(fields)!r:.60}")
    return text_of(fields[name])


@dataclass(frozen=True)
class JoinedTexts(Transform):
    """The texts of a list, with ``separator`` between them."""

    op = "join"
    separator: str = "\n"

    def __post_init__(self) -> None:
        if not isinstance(self.separator, str) or len(self.separator) > 1000:
            raise self._refuse("separator", "give a text of at most 1000 characters")

    def read(self, value: Any, text: str) -> str:
        if not isinstance(value, list):
            raise ValueError("it is no list")
        texts = [text_of(entry) for entry in value]
        length = sum(map(len, texts)) + len(self.separator) * len(texts)
        if length > MOST_TEXT:
            raise ValueError(f"the text would have {length} characters; at most {MOST_TEXT}")
        return self.separator.join(texts)


OPS: dict[str, type[Transform]] = {
    kind.op: kind
    for kind in (
        StripSpace, RegexGroup, JsonPath, TextList, EnumOption, TruthWord, NumberText, DateText,
        XmlElement, TextTemplate, JoinedTexts,
    )
}  # fmt: skip


def transform_of(body: Any) -> Transform:
    """Return the transform that ``to_json`` wrote. Raise TransformError for anything else."""
    if not isinstance(body, Mapping) or not isinstance(body.get("op"), str):
        raise TransformError(f"a transform is an object with an op, not {body!r:.60}")
    kind = OPS.get(body["op"])
    if kind is None:
        raise TransformError(f"transform {body['op']!r:.60} is unknown; use one of {sorted(OPS)}")
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    options = {name: value for name, value in body.items() if name != "op"}
    for name in options:
        if name not in known:
            raise TransformError(
                f"transform {kind.op!r} has no field {name!r:.60}; it has {list(known)}"
            )
    for name, f in known.items():
        if f.default is dataclasses.MISSING and name not in options:
            raise TransformError(f"transform {kind.op!r} needs its field {name!r}")
    plain = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
    return kind(**plain)


def transforms_of(bodies: Any) -> tuple[Transform, ...]:
    """Return the transforms of a list as it is sent. Raise TransformError."""
    if not isinstance(bodies, (list, tuple)) or len(bodies) > MOST_CHAIN:
        raise TransformError(
            f"transforms is {bodies!r:.60}; give a list of at most {MOST_CHAIN} transforms"
        )
    return tuple(map(transform_of, bodies))


def transformed(transforms: Sequence[Transform], value: Any) -> Any:
    """Return ``value`` after all ``transforms``, in order. Raise TransformError."""
    for transform in transforms:
        value = transform.apply(value)
    return value
