"""Constraints of generated text: ``dtype``, ``regex``, ``json_schema``, ``schema``, ``ebnf``,
``structural_tag``, ``one_of``.

A backend that enforces constraints during generation gets the regex, JSON schema, grammar or tag.
For another backend the text is checked afterwards; if it fails, the model is called again with the
error (``run/retry``). A grammar or tag is refused there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from sglang.backend import output_types as types
from sglang.errors import InvalidOutput, Unsupported
from sglang.ir.params import GenParams, TypedSchema, strings

# A number ends at a space or line end, so int and float stop there. The enforced pattern allows one
# at the end, because otherwise a model that may only add digits would continue the number.
DTYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "int": (r"[-+]?[0-9]{1,20}", (" ", "\n")),
    "float": (r"[-+]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})", (" ", "\n")),
    "str": (r'"[^"\\\n]*"', ()),
    "bool": (r"(True|False)", ()),
}
# Parameters that exclude one another.
CONSTRAINTS = ("dtype", "regex", "json_schema", "schema", "ebnf", "structural_tag", "one_of")
MAX_TEXT_CHARS = 80
MAX_SHOWN = 5  # texts of ``one_of`` in a message
PLAIN_WORDS = {
    "int": "an integer in digits, such as 42",
    "float": "a number in digits, such as 3.5",
    "str": 'one line in double quotes, such as "text", without quotes or backslashes inside',
    "bool": "True or False",
}


class OutputConstraint:
    """Base of all constraints. ``kind`` is one of the names in ``Backend.constraints``."""

    kind: ClassVar[str]

    def resolve(self, params: GenParams) -> GenParams:
        """Return ``params`` with ``dtype`` and ``schema`` replaced by the fields that a backend
        gets."""
        raise NotImplementedError

    def free(self, params: GenParams, continues: bool = False) -> GenParams:
        """Return ``params`` for a backend that does not enforce the constraint.

        The stops of a dtype are removed too, because such a model may generate a space before the
        value. ``continues``: the reply continues the prompt; ``dtype`` is kept, so the backend can
        make a value likely. Raises Unsupported if the constraint must be enforced.
        """
        return replace(
            params, dtype=None, regex=None, json_schema=None, schema=None, whitespace_pattern=None
        )

    def parse(self, text: str) -> Any:
        """Return the typed value of a finished text. Raises InvalidOutput."""
        raise NotImplementedError

    def parse_partial(self, text: str) -> Any:
        """Return the typed value of a text that is still growing; None while no value is known."""
        with suppress(InvalidOutput):
            return self.parse(text)
        return None

    def check(self, text: str) -> None:
        """Raise InvalidOutput if ``text`` does not satisfy the constraint."""
        self.parse(text)

    def instruction(self) -> str:
        """Return an instruction for a model that does not enforce the constraint."""
        raise NotImplementedError

    def extract(self, text: str, continues: bool = False) -> str:
        """Return the part of a reply that is the value, without the words or code fence around it.

        Return the whole reply if it is valid, or if no part or several parts could be the value. If
        the reply continues the prompt (``continues``), a value at its beginning is taken.
        """
        if self._accepts(text):
            return text
        if continues and (leading := self._leading(text)) is not None:
            return leading
        parts = list(dict.fromkeys(self._parts(text)))
        plausible = [part for part in parts if self._accepts(part)] or parts
        return plausible[0] if len(plausible) == 1 else text

    def _accepts(self, text: str) -> bool:
        try:
            self.check(text)
        except InvalidOutput:
            return False
        return True

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the parts of a reply that may satisfy the constraint."""
        yield from ()

    def _leading(self, text: str) -> str | None:
        """Return the value that the text begins with; None if there is none."""
        return None


@dataclass(frozen=True)
class Regex(OutputConstraint):
    """Text that matches ``pattern`` as a whole."""

    kind = "regex"
    pattern: str

    def resolve(self, params: GenParams) -> GenParams:
        return params

    def parse(self, text: str) -> Any:
        """Return the text itself: the program interprets it."""
        return text

    def check(self, text: str) -> None:
        """Raise InvalidOutput if ``text`` does not match. Raises ValueError where Python cannot
        read the pattern."""
        try:
            matches = re.fullmatch(self.pattern, text)
        except re.error as error:
            raise ValueError(
                f"regex is {self.pattern!r}, which Python cannot read ({error}) and this backend "
                "does not enforce; write it in Python's syntax, or use Engine or RuntimeEndpoint"
            ) from error
        if not matches:
            reason = f"{text!r:.{MAX_TEXT_CHARS}} does not match the regular expression"
            raise InvalidOutput(f"{reason} {self.pattern}", text)

    def instruction(self) -> str:
        return (
            "Answer with text that matches this regular expression as a whole, and with nothing "
            f"else: {self.pattern}"
        )


@dataclass(frozen=True)
class Dtype(OutputConstraint):
    """An int, float, str or bool in plain text. Whitespace around it is ignored."""

    kind = "regex"
    name: str

    def resolve(self, params: GenParams) -> GenParams:
        pattern, stops = DTYPES[self.name]
        ending = f"[{''.join(stops)}]?" if stops else ""
        stop = (*strings(params.stop), *stops)
        return replace(params, dtype=None, regex=pattern + ending, stop=stop)

    def parse(self, text: str) -> int | float | str | bool:
        word = text.strip()
        if not re.fullmatch(DTYPES[self.name][0], word):
            reason = f"{word!r:.{MAX_TEXT_CHARS}} is not {PLAIN_WORDS[self.name]}"
            raise InvalidOutput(reason, text)
        if self.name == "str":
            return word[1:-1]
        if self.name == "bool":
            return word == "True"
        return int(word) if self.name == "int" else float(word)

    def free(self, params: GenParams, continues: bool = False) -> GenParams:
        freed = super().free(params)
        return replace(freed, dtype=self.name) if continues else freed

    def instruction(self) -> str:
        return f"Answer with {PLAIN_WORDS[self.name]}, and with nothing else."

    def _leading(self, text: str) -> str | None:
        """Return the number that the text begins with; None if it is only the beginning of a longer
        number, a word or a date."""
        end = "" if self.name == "str" else r"(?!\w|[.,:/+-]\d)"
        found = re.match(rf"\s*({DTYPES[self.name][0]}){end}", text)
        return found[1] if found else None

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the number that the text begins with; otherwise all matches that are not part of a
        longer word, number or date. For a bool, yield the only match, unless the text has a
        negation."""
        pattern = f"({DTYPES[self.name][0]})"
        if self.name == "str" and "\\" in text:
            return
        if self.name == "bool":
            words = re.findall(r"\b(?:True|False)\b", text)
            if len(words) == 1 and not re.search(r"\bnot\b|n't\b", text):
                yield words[0]
            return
        if self.name != "str" and (leading := re.match(rf"\s*{pattern}\s", text)):
            yield leading[1]
            return
        for found in re.finditer(rf"(?<![\w.,:/+-]){pattern}(?!\w|[.,:/+-]\d)", text):
            yield found[1]


@dataclass(frozen=True)
class JsonSchema(OutputConstraint):
    """JSON text that is valid for ``source``, a type or a JSON schema (see ``output_types``).

    The constructor raises TypeError or ValueError, as ``output_types.json_schema_of`` does.
    """

    kind = "json_schema"
    source: Any
    schema: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", types.json_schema_of(self.source))

    @cached_property
    def sent(self) -> dict[str, Any]:
        """Return the schema for a backend that enforces it. It forbids further keys, because an
        object of a type has only the type's keys."""
        if isinstance(self.source, (str, Mapping)):
            return self.schema
        return dict(types.closed(self.schema))

    def resolve(self, params: GenParams) -> GenParams:
        return replace(params, schema=None, json_schema=self.sent)

    def parse(self, text: str) -> Any:
        return types.parse(self.source, text)

    def parse_partial(self, text: str) -> Any:
        return types.parse_partial(self.source, text)

    def instruction(self) -> str:
        return (
            "Answer with JSON that satisfies this JSON schema, and with nothing else: "
            + json.dumps(self.schema, ensure_ascii=False)
        )

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the content of Markdown code fences, and outermost objects and arrays, where they
        are JSON."""
        fences = (fence[1].strip() for fence in re.finditer(FENCE, text, re.DOTALL))
        yield from filter(_is_json, (*fences, *_bracketed(text)))


@dataclass(frozen=True)
class GrammarConstraint(OutputConstraint):
    """Text of a grammar or of a structural tag. It cannot be checked after generation."""

    kind: str  # type: ignore[misc]
    source: Any

    def resolve(self, params: GenParams) -> GenParams:
        return params

    def free(self, params: GenParams, continues: bool = False) -> GenParams:
        raise Unsupported(
            f"{self.kind} needs a backend that enforces it: use Engine or RuntimeEndpoint, or "
            "OpenAI(base_url=...) of a server that does (say which by server='vllm', and so on, "
            "where it does not tell itself); or give a regex or json_schema, which other backends "
            "check and ask again for"
        )

    def parse(self, text: str) -> str:
        """Return the text itself."""
        return text


@dataclass(frozen=True)
class OneOf(OutputConstraint):
    """One of several texts. Whitespace around it is ignored."""

    kind = "choices"
    texts: tuple[str, ...]

    @property
    def most_tokens(self) -> int:
        """Return a number of tokens that is enough for each of the texts: its bytes, plus one for
        the end of the text."""
        return max(len(one.encode("utf-8", "surrogatepass")) for one in self.texts) + 1

    def resolve(self, params: GenParams) -> GenParams:
        """Return ``params`` without stops: generation ends after one of the texts, and a stop
        inside a text would cut it."""
        return replace(params, one_of=self.texts, stop=None, stop_regex=None, stop_token_ids=None)

    def free(self, params: GenParams, continues: bool = False) -> GenParams:
        """Return ``params`` without ``one_of``, and without each stop that occurs inside one of the
        texts."""
        kept = tuple(s for s in strings(params.stop) if not any(s in one for one in self.texts))
        stop = params.stop if len(kept) == len(strings(params.stop)) else kept or None
        return replace(params, one_of=None, stop=stop)

    def parse(self, text: str) -> str:
        for one in self.texts:
            if one == text or one.strip() == text.strip():
                return one
        shown = ", ".join(map(repr, self.texts[:MAX_SHOWN]))
        more = ", ..." if len(self.texts) > MAX_SHOWN else ""
        raise InvalidOutput(f"{text!r:.{MAX_TEXT_CHARS}} is none of {shown}{more}", text)

    def instruction(self) -> str:
        listed = json.dumps(self.texts, ensure_ascii=False)
        return f"Answer with one of these texts, and with nothing else: {listed}"

    def _leading(self, text: str) -> str | None:
        for one in sorted(self.texts, key=len, reverse=True):
            if re.match(re.escape(one.strip()) + r"((?<!\w)|(?!\w))", text.strip()):
                return one
        return None

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the text that occurs in the reply as whole words, if exactly one of them does."""
        yield from (
            one for one in self.texts if re.search(rf"(?<!\w){re.escape(one.strip())}(?!\w)", text)
        )


FENCE = r"```\w*\s(.*?)```"
OPENING = re.compile(r"[{\[]")
BRACKET_OR_STRING = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"?', re.DOTALL)


def _bracketed(text: str) -> Iterator[str]:
    """Yield the text from each outermost { or [ to its closing bracket. A bracket that is never
    closed hides what follows it. Quotation marks begin strings only inside brackets, because words
    outside may have them too."""
    begin, depth, at = 0, 0, 0
    while found := (BRACKET_OR_STRING if depth else OPENING).search(text, at):
        at = found.end()
        if found[0] in "{[":
            begin = begin if depth else found.start()
            depth += 1
        elif found[0] in "}]":
            depth -= 1
            if not depth:
                yield text[begin:at]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def constrained(own: GenParams, defaults: GenParams) -> tuple[GenParams, OutputConstraint | None]:
    """Return the parameters of a gen with own parameters ``own`` and inherited ones ``defaults``,
    and its constraint. An inherited limit of tokens is raised to what the longest text of
    ``one_of`` may need. Raises the errors of ``constraint_of``."""
    params = own.over(defaults)
    constraint = constraint_of(params)
    if isinstance(constraint, OneOf) and own.max_new_tokens is None:
        limit = max(params.max_new_tokens or 0, constraint.most_tokens)
        params = replace(params, max_new_tokens=limit)
    return params, constraint


def constraint_of(params: GenParams) -> OutputConstraint | None:
    """Return the constraint of a generation, None if it has none.

    Raises:
        ValueError: more than one constraint is given, or a dtype or schema is invalid.
        TypeError: the type has no JSON schema.
    """
    chosen = [name for name in CONSTRAINTS if getattr(params, name) is not None]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise ValueError(f"{', '.join(CONSTRAINTS)} exclude one another; give one of {chosen}")
    (name,) = chosen
    value = getattr(params, name)
    if name == "regex":
        if not isinstance(value, str):
            raise TypeError(f"regex is {value!r:.60}; give a str, such as r'[0-9]+'")
        return Regex(value)
    if name in ("ebnf", "structural_tag"):
        return _grammar(name, value)
    if name == "one_of":
        return OneOf(_texts(value))
    if name == "dtype":
        return Dtype(_dtype_name(value))
    return _json_schema(value)


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of ``one_of`` without repetitions. Raises TypeError if ``value`` is not a
    list of texts, ValueError if it is empty or has an empty text."""
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"one_of is {value!r:.60}; give a list of texts")
    if not value or "" in value:
        raise ValueError(f"one_of is {value!r:.60}; give at least one text, and none that is empty")
    return tuple(dict.fromkeys(value))


def _grammar(name: str, value: Any) -> GrammarConstraint:
    kinds, words = ((str,), "a str") if name == "ebnf" else ((str, dict), "a dict, or its JSON")
    if not isinstance(value, kinds):
        raise TypeError(f"{name} is {value!r:.60}; give {words}")
    return GrammarConstraint(name, value)


def _json_schema(source: Any) -> JsonSchema:
    """Return the constraint, cached by type or by the JSON text of a schema."""
    if isinstance(source, TypedSchema):
        source = source.source
    if isinstance(source, Mapping):
        with suppress(TypeError):  # not JSON: ``output_types`` reports the error below
            return _kept_schema(json.dumps(source), type(source))
    try:
        return _kept_schema(source)
    except TypeError:  # not hashable, or invalid: the constructor reports the error
        return JsonSchema(source)


@lru_cache(maxsize=256)
def _kept_schema(source: Any, kind: type | None = None) -> JsonSchema:
    return JsonSchema(source if kind is None else json.loads(source))


def _dtype_name(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if name not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; use int, float, str or bool")
    return name
