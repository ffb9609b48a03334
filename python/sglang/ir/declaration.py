"""Declarations: type, bounds, default and description of a field, each written once.

A class declares a field by its type, ``Annotated[type, bounds, description]``, which may stand
inside another, as in ``Annotated[...] | None``; a role may follow. ``declared`` reads them. Checks,
the OpenAPI document and the tables of the pages are made of what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Bounds:
    """The values that a field may have.

    Attributes:
        least: smallest number; of a mapping, smallest of its values.
        most: largest number, likewise.
        open: ``least`` itself is refused.
        entries: most entries of a list or mapping.
        characters: most characters of a text, or of each text in a list.
        empty: a text may be empty.
        one_of: the texts that are allowed.
        words: what to say instead of the words made from the numbers.
        refused: a number between ``least`` and ``most`` that is refused.
    """

    least: float | None = None
    most: float | None = None
    open: bool = False
    entries: int | None = None
    characters: int | None = None
    empty: bool = False
    one_of: tuple[str, ...] = ()
    words: str = ""
    refused: float | None = None

    def allow(self, number: float) -> bool:
        """Return whether a number is within the bounds. NaN and infinity are not."""
        if isinstance(number, float) and not math.isfinite(number):
            return False
        if self.refused is not None and number == self.refused:
            return False
        if self.least is not None and (number < self.least or (self.open and number == self.least)):
            return False
        return self.most is None or number <= self.most

    @cached_property
    def free(self) -> bool:
        """Whether every value of the type is allowed."""
        return replace(self, words="", empty=False) == Bounds()

    def keywords(self, kind: str) -> dict[str, Any]:
        """The keywords of JSON Schema that bound a value of the JSON type ``kind``."""
        found: dict[str, Any] = {}
        if kind in ("integer", "number"):
            found["exclusiveMinimum" if self.open else "minimum"] = self.least
            found["maximum"] = self.most
            found["not"] = None if self.refused is None else {"const": self.refused}
        elif kind == "string":
            found["minLength"] = None if self.empty or self.characters is None else 1
            found["maxLength"] = self.characters
            found["enum"] = list(self.one_of) or None
        elif kind == "array":
            found["maxItems"] = self.entries
        elif kind == "object" and self.entries is not None:
            found = {"propertyNames": _TOKEN_IDS, "maxProperties": self.entries}
        return {name: value for name, value in found.items() if value is not None}


_TOKEN_IDS = {"pattern": "^[0-9]{1,18}$"}


@dataclass(frozen=True)
class Parameter:
    """The declaration of one field. ``role``: the group of fields that it belongs to."""

    name: str
    type: Any
    bounds: Bounds
    default: Any
    description: str
    role: str = ""

    @property
    def expected(self) -> str:
        """The allowed values in words, such as "a number from 0 to 1"."""
        bounds, kind = self.bounds, _first(self.type)
        if bounds.words:
            return bounds.words
        if bounds.one_of:
            return "one of " + ", ".join(bounds.one_of)
        if kind is bool:
            return "true or false"
        if kind is str:
            most = bounds.characters
            return "a text" if most is None else f"a text of at most {most} characters"
        noun = "a number" if kind is float else "a whole number"
        if bounds.least is None:
            return noun
        least = _shown(bounds.least)
        if bounds.open:
            least = f"above {least}"
        if bounds.most is None:
            return f"{noun} of at least {least}"
        if bounds.open:
            return f"{noun} {least} and at most {_shown(bounds.most)}"
        return f"{noun} from {least} to {_shown(bounds.most)}"

    def complaint(self, value: Any, name: str = "") -> str:
        """Say why a value of the right type is refused; "" where it is allowed.

        A list is refused for an entry where the bounds are those of one value. ``name``: what the
        caller knows the field by.
        """
        name, bounds = name or self.name, self.bounds
        if bounds.free:  # a prompt of many token ids is not read
            return ""
        if isinstance(value, list) and bounds.entries is None:
            found = (self.complaint(one, name) for one in value if one is not None)
            return next(filter(None, found), "")
        if bounds.one_of or isinstance(value, (int, float)):
            fits = value in bounds.one_of if bounds.one_of else bounds.allow(value)
            return "" if fits else f"{name} is {value!r:.80}; it must be {self.expected}."
        if isinstance(value, str):
            return self._text(name, value, "has")
        if isinstance(value, Mapping):
            return self._entries(name, value) or self._values(name, value)
        if isinstance(value, Sequence):
            return self._entries(name, value) or self._texts(name, value)
        return ""

    def _entries(self, name: str, value: Sequence[Any] | Mapping[Any, Any]) -> str:
        most = self.bounds.entries
        if most is not None and len(value) > most:
            return f"{name} has {len(value)} entries; at most {most}."
        return ""

    def _values(self, name: str, value: Mapping[Any, Any]) -> str:
        for key, number in value.items():
            if not self.bounds.allow(number):
                least, most = self.bounds.least, self.bounds.most
                return f"{name} of token {key} is {number}; it must be from {least} to {most}."
        return ""

    def _texts(self, name: str, value: Iterable[Any]) -> str:
        found = (self._text(name, text, "has an entry of") for text in value)
        return next(filter(None, found), "")

    def _text(self, name: str, text: Any, has: str) -> str:
        most = self.bounds.characters
        if most is None:
            return ""
        if text == "" and not self.bounds.empty:
            return f"{name} contains an empty string; remove it."
        return f"{name} {has} {len(text)} characters; at most {most}." if len(text) > most else ""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a value, with its bounds and without null."""
        kind = _first(self.type)
        if get_origin(kind) is tuple:
            return self._schema("array", items=self._schema(_JSON[get_args(kind)[0]]))
        if get_origin(kind) is dict:
            return self._schema("object", additionalProperties=self._schema("number"))
        return self._schema(_JSON[kind])

    def _schema(self, kind: str, **inner: Any) -> dict[str, Any]:
        return {"type": kind, **inner, **self.bounds.keywords(kind)}


_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _first(kind: Any) -> Any:
    """The first of the alternatives of a type, which is not None; of a type alone, itself."""
    return get_args(kind)[0] if get_origin(kind) in (Union, UnionType) else kind


def _shown(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


def declared(kind: type, defaults: Mapping[str, Any]) -> dict[str, Parameter]:
    """The declarations of a class by field, in order. Fields without one are left out.

    ``defaults``: by field; None where it has none.
    """
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if (annotated := _annotated(hint)) is not None:
            own, bounds, *words = get_args(annotated)
            if not words:
                continue  # constraints of msgspec's own
            found[name] = Parameter(name, own, bounds or Bounds(), defaults.get(name), *words)
    return found


def _annotated(hint: Any) -> Any:
    """The first declaration in a type; None where there is none."""
    if get_origin(hint) is Annotated:
        return hint
    inner = (_annotated(one) for one in get_args(hint))
    return next((one for one in inner if one is not None), None)
