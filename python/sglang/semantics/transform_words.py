"""``sglang.transforms``: the words for transforms of a value.

A word makes transforms, ``|`` chains them, and ``of`` says what they are given:

    s["price"] = (sgl.transforms.json("items", 0, "price") | sgl.transforms.number()).of("answer")

makes variable "price" of variable "answer" and appends nothing. The value is what JSON can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.ir.nodes import NamedVariable, Node, Transformed
from sglang.semantics import transforms as closed
from sglang.semantics.transforms import Transform, TransformError

__all__ = [
    "TransformError", "Transforms", "bool", "date", "enum", "join", "json", "list", "number",
    "regex", "strip", "template", "xml",
]  # fmt: skip


@dataclass(frozen=True)
class Transforms:
    """Transforms of a value, one after the other."""

    chain: tuple[Transform, ...]

    def __or__(self, other: Transforms) -> Transforms:
        if not isinstance(other, Transforms):
            return NotImplemented
        return Transforms((*self.chain, *other.chain))

    def of(self, source: str | Node) -> TransformedValue:
        """Return what a variable is made of: ``s["y"] = ....of("x")``. ``source``: the name of a
        variable of that state."""
        if not isinstance(source, (str, Node)):
            raise TypeError(f"of is {source!r:.60}; give the name of a variable")
        return TransformedValue(self, source)

    def apply(self, value: Any) -> Any:
        """Return ``value`` after the transforms. Raise TransformError."""
        return closed.transformed(self.chain, value)

    def to_json(self) -> tuple[dict[str, Any], ...]:
        """The transforms as they are sent. Raise TransformError where there are too many."""
        sent = tuple(transform.to_json() for transform in self.chain)
        closed.transforms_of(sent)
        return sent


@dataclass(frozen=True)
class TransformedValue:
    """Right side of ``s["y"] = sgl.transforms.strip().of("x")``."""

    transforms: Transforms
    source: str | Node

    def node(self, name: str) -> Transformed:
        """The node that makes variable ``name``. Raise TransformError."""
        source = self.source
        of = NamedVariable(source) if isinstance(source, str) else source
        return Transformed(name, (of,), self.transforms.to_json())

    def _is_no_value(self, *_: object) -> Any:
        raise TypeError(
            "a transform makes a variable: s['y'] = sgl.transforms.strip().of('x'), then s['y']"
        )

    __str__ = __format__ = __add__ = __radd__ = _is_no_value


def strip() -> Transforms:
    """The text without white space around it."""
    return Transforms((closed.StripSpace(),))


def regex(pattern: str, group: int | str = 0) -> Transforms:
    """The first match of ``pattern``, in RE2's language, or its group by number or name."""
    return Transforms((closed.RegexGroup(pattern, group),))


def json(*path: str | int) -> Transforms:
    """The JSON value in the text, or what the path of names and indices leads to."""
    return Transforms((closed.JsonPath(path),))


def list(style: str = "comma") -> Transforms:
    """The entries of a list. ``style``: "comma", "numbered", "bullets" or "lines"."""
    return Transforms((closed.TextList(style),))


def enum(*options: str) -> Transforms:
    """The option that the text is, whatever its case."""
    return Transforms((closed.EnumOption(options),))


def bool(true: tuple[str, ...] = ("true", "yes"), false: tuple[str, ...] = ("false", "no")) -> Any:
    """Whether a word of ``true`` stands in the text, or one of ``false``."""
    return Transforms((closed.TruthWord(tuple(true), tuple(false)),))


def number() -> Transforms:
    """The number that the text is, an int or a float."""
    return Transforms((closed.NumberText(),))


def date(format: str = "%Y-%m-%d") -> Transforms:
    """The date in the text as ISO 8601. ``format``: %Y %m %d %H %M %S, %B or %b."""
    return Transforms((closed.DateText(format),))


def xml(tag: str) -> Transforms:
    """The content of the first XML element ``tag``."""
    return Transforms((closed.XmlElement(tag),))


def template(text: str) -> Transforms:
    """``text`` with ``{value}`` in place of the value, ``{name}`` of an object's fields."""
    return Transforms((closed.TextTemplate(text),))


def join(separator: str = "\n") -> Transforms:
    """The texts of a list with ``separator`` between them."""
    return Transforms((closed.JoinedTexts(separator),))
