"""Query: reads a request's query parameters, which a struct declares (``ir/declaration``)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from sglang.ir.declaration import Parameter
from sglang.srt.requests.common_fields import declarations
from sglang.srt.requests.request_error import RequestError
from starlette.requests import Request

T = TypeVar("T", bound=msgspec.Struct)
MAX_DIGITS = 18


def read_query(request: Request, kind: type[T]) -> T:
    """Return a query's parameters as a struct; missing ones have their defaults. Undeclared ones
    are ignored. Raises RequestError."""
    found = {}
    for name, parameter in declarations(kind).items():
        given = request.query_params.get(name)
        if given is None:
            continue
        found[name] = value = _value(given, parameter)
        if value is None:
            raise RequestError(f"{name} is {given!r:.40}; give {parameter.expected}.", name)
        if complaint := parameter.complaint(value):
            raise RequestError(complaint, name)
    return kind(**found)


def _value(given: str, parameter: Parameter) -> Any:
    """Convert a text to the parameter's type; return None if that is impossible."""
    if parameter.type is int:
        digits = given.isascii() and given.isdigit() and len(given) <= MAX_DIGITS
        return int(given) if digits else None
    if parameter.type is float:
        try:
            return float(given)
        except ValueError:
            return None
    return given
