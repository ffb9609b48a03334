"""Query: numbers in the query of a request."""

from __future__ import annotations

from sglang.srt.requests.request_error import RequestError
from starlette.requests import Request


def number_of(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the query, ``default`` where it is not there. Raises RequestError."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise RequestError(f"{name} is {given!r:.40}; give a whole number.", name)
    if not least <= int(given) <= most:
        raise RequestError(f"{name} is {given}; it must be {least} to {most}.", name)
    return int(given)
