"""Types of generated text: conversion of a type to a JSON schema, and of JSON text to an object.

A ``schema`` is a pydantic model, dataclass, TypedDict, NamedTuple, Enum, Literal, union, builtin or
generic of these (``list[Item]``, ``dict[str, int]``), a JSON schema as a dict, or the JSON text of
one. The text is JSON. For a schema that is an Enum or a Literal, the bare word (``red`` for
``"red"``) is accepted too. pydantic and jsonschema are imported at their first use.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
)

from sglang.errors import InvalidOutput

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

MAX_PROBLEMS = 3
MAX_REASON_CHARS = 200
UNIONS: tuple[Any, ...] = (Union, UnionType)
EXPECTED = "give a type, a JSON schema as a dict, or the JSON text of one"


def json_schema_of(schema: Any) -> dict[str, Any]:
    """Return the JSON schema of ``schema``, a type or a JSON schema.

    Raises:
        TypeError: the type has no JSON schema.
        ValueError: the dict or text is not a valid JSON schema.
    """
    if isinstance(schema, (str, Mapping)):
        return _checked(schema)
    from pydantic.errors import PydanticUserError

    try:
        return _adapter(schema).json_schema()
    except PydanticUserError as error:
        raise _unusable(schema, error.message) from error


_NAMED = frozenset({"properties", "$defs"})  # keywords whose values map names to schemas
_DATA = frozenset({"const", "default", "enum", "examples", "required"})


def closed(schema: Any) -> Any:
    """Return ``schema`` with all other keys than the named properties forbidden in objects."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {
        key: {name: closed(inner) for name, inner in value.items()} if key in _NAMED
        else value if key in _DATA else closed(value)
        for key, value in schema.items()
    }  # fmt: skip
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def parse(schema: Any, text: str) -> Any:
    """Return the typed object of a JSON text; for a JSON schema, the decoded JSON.

    Raises InvalidOutput with a short message for the model: where and why the text is invalid.
    """
    if isinstance(schema, (str, Mapping)):
        return _validated(_decoded_schema(schema), text)
    from pydantic import ValidationError

    adapter = _adapter(schema)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        if _is_choice(schema):
            with suppress(ValidationError):
                return adapter.validate_python(text.strip())
        raise _invalid(((e["loc"], e["msg"]) for e in error.errors()), text) from error


def parse_partial(schema: Any, text: str) -> Any:
    """Return the typed object of an incomplete JSON text; None while no value is known.

    Never raises for a prefix of valid JSON. Values are not validated: a string or number may be
    incomplete, and a missing field of a model or dataclass has its default, or None. A value
    without partial form (Enum, Literal, date, a union of several types) is None until complete.
    """
    try:
        data = _decoded(text, allow_partial="trailing-strings")
    except ValueError:
        return None
    return data if isinstance(schema, (str, Mapping)) else _typed(schema, data)


# JSON schemas


def _decoded(text: str, **options: Any) -> Any:
    """Decode JSON. Raises ValueError, also for nesting beyond 200 levels and half a surrogate
    pair."""
    from pydantic_core import from_json

    return from_json(text.encode("utf-8", "surrogatepass"), allow_inf_nan=False, **options)


def _decoded_schema(schema: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    try:
        decoded = _decoded(schema)
    except ValueError as error:
        raise ValueError(
            f"json_schema is {schema!r:.60}, not JSON ({error}); {EXPECTED}"
        ) from error
    if not isinstance(decoded, dict):
        raise ValueError(f"json_schema is {schema!r:.60}; a JSON schema is an object: {{...}}")
    return decoded


def _checked(schema: str | Mapping[str, Any]) -> dict[str, Any]:
    import jsonschema

    decoded = _decoded_schema(schema)
    try:
        _dialect(decoded).check_schema(decoded)
    except jsonschema.SchemaError as error:
        where, why = _path(error.absolute_path), error.message[:MAX_REASON_CHARS]
        raise ValueError(f"json_schema is not a JSON schema: {where or 'it'}: {why}") from error
    return decoded


def _dialect(schema: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


def _validated(schema: dict[str, Any], text: str) -> Any:
    """Decode and validate a JSON text. References outside the schema raise ValueError."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        value = _decoded(text)
    except ValueError as error:
        raise _invalid([((), f"not JSON: {error}")], text) from error
    validator = _dialect(schema)(schema, registry=EMPTY_REGISTRY)
    try:
        problems = [best_match([error]) for error in validator.iter_errors(value)]
    except Unresolvable as error:
        raise ValueError(
            f"json_schema refers to {error.ref!r}, which is not in it; put it under $defs"
        ) from error
    except RecursionError as error:
        reason = "nested too deeply, or by a schema that refers to itself without end"
        raise _invalid([((), reason)], text) from error
    if problems:
        raise _invalid(((p.absolute_path, p.message) for p in problems), text)
    return value


def _invalid(problems: Iterable[tuple[Iterable[Any], str]], text: str) -> InvalidOutput:
    lines = []
    for path, reason in problems:
        where, why = _path(path), reason
        if len(why) > MAX_REASON_CHARS:
            why = why[:MAX_REASON_CHARS] + "..."
        lines.append(f"{where}: {why}" if where else why)
    more = len(lines) - MAX_PROBLEMS
    shown = "; ".join(lines[:MAX_PROBLEMS])
    return InvalidOutput(f"{shown}; and {more} more" if more > 0 else shown, text)


def _path(parts: Iterable[Any]) -> str:
    """``items[0].price``"""
    steps = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return "".join(steps).removeprefix(".")


# Types


def _adapter(schema: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type, cached if the type is hashable."""
    try:
        hash(schema)
    except TypeError:
        return _new_adapter(schema)
    return _kept_adapter(schema)


@lru_cache(maxsize=256)
def _kept_adapter(schema: Any) -> TypeAdapter[Any]:
    return _new_adapter(schema)


def _new_adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
    from pydantic_core import SchemaError

    try:
        return TypeAdapter(_readable(schema))
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise _unusable(schema, error.message) from error
    except (SchemaError, NameError) as error:
        raise _unusable(schema, str(error)) from error
    except RecursionError as error:
        reason = "a TypedDict that contains itself must be one of typing_extensions"
        raise _unusable(schema, reason) from error


def _unusable(schema: Any, why: str) -> TypeError:
    why = " ".join(why.partition("\n\n")[0].split())
    return TypeError(f"no JSON schema can be made of {schema!r:.80}: {why}; {EXPECTED}")


def _is_choice(schema: Any) -> bool:
    is_enum = isinstance(schema, type) and issubclass(schema, Enum)
    return is_enum or get_origin(schema) is Literal


def _readable(kind: Any) -> Any:
    """Return ``kind`` with each TypedDict of ``typing`` replaced by one of ``typing_extensions``.

    Before Python 3.12, pydantic does not support TypedDicts of ``typing``.
    """
    if sys.version_info >= (3, 12):
        return kind
    import typing_extensions as extended

    if extended.is_typeddict(kind) and type(kind).__module__ == "typing":
        twin: Any = extended.TypedDict
        required: Any = extended.Required
        optional: Any = extended.NotRequired
        fields = {}
        for name, hint in extended.get_type_hints(kind, include_extras=True).items():
            if get_origin(hint) not in (required, optional):  # __required_keys__ misses strings
                hint = (required if name in kind.__required_keys__ else optional)[hint]
            wrapper: Any = get_origin(hint)
            fields[name] = wrapper[_readable(get_args(hint)[0])]
        return twin(kind.__name__, fields)
    origin: Any = get_origin(kind)
    args = get_args(kind)
    readable = tuple(_readable(arg) for arg in args)
    if all(new is old for new, old in zip(readable, args)):
        return kind
    generic: Any = Union if origin in UNIONS else origin
    return generic[readable]


# Incomplete objects


def _typed(kind: Any, data: Any) -> Any:
    """Return ``data``, decoded JSON, as an unvalidated object of type ``kind``."""
    from typing_extensions import is_typeddict

    kind = _plain(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin is list and isinstance(data, list):
        return [_typed(args[0], item) for item in data]
    if origin is dict and isinstance(data, dict):
        return {_typed(args[0], key): _typed(args[1], value) for key, value in data.items()}
    if getattr(kind, "__pydantic_root_model__", False):
        return kind.model_construct(_typed(kind.model_fields["root"].annotation, data))
    if isinstance(data, dict) and isinstance(kind, type) and origin is None:
        if is_typeddict(kind):
            hints = _hints(kind)
            return {name: _typed(hints.get(name, Any), value) for name, value in data.items()}
        if dataclasses.is_dataclass(kind):
            return _partial_dataclass(kind, data)
        if hasattr(kind, "model_fields"):
            return _partial_model(kind, data)
    return _whole(kind, data)


def _plain(kind: Any) -> Any:
    """Return the type without Annotated; for ``X | None``, return ``X``."""
    while True:
        origin: Any = get_origin(kind)
        args = [arg for arg in get_args(kind) if arg is not NoneType]
        optional = origin in UNIONS and len(args) == 1
        if not optional and origin is not Annotated:
            return kind
        kind = args[0]


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    from typing_extensions import get_type_hints

    return get_type_hints(kind)


def _partial_model(kind: type[BaseModel], data: dict[str, Any]) -> Any:
    known: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        key = alias if isinstance(alias, str) and alias in data else name
        if key in data:
            known[name] = _typed(field.annotation, data[key])
        elif field.is_required():
            missing[name] = None
    return kind.model_construct(set(known), **missing, **known)


def _partial_dataclass(kind: Any, data: dict[str, Any]) -> Any:
    hints, made = _hints(kind), object.__new__(kind)
    for field in dataclasses.fields(kind):
        value = None
        if field.name in data:
            value = _typed(hints[field.name], data[field.name])
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            value = field.default
        object.__setattr__(made, field.name, value)
    return made


def _whole(kind: Any, data: Any) -> Any:
    """Return ``data`` as an object of ``kind`` if it is valid, else None."""
    with suppress(ValueError):
        return _adapter(kind).validate_python(data)
    return None
