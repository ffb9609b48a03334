"""Queries: read, bounded and documented by one declaration."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from sglang.ir.declaration import Bounds
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.exchange.query import read_query
from sglang.srt.web.openapi.limits import query_schemas
from starlette.requests import Request

NINES = "9" * 5000


class Query(msgspec.Struct):
    limit: Annotated[int, Bounds(1, 100), "Most items."] = 20
    wait: Annotated[float, Bounds(0.5, 2.0), "Seconds."] = 1.0
    order: Annotated[str, Bounds(one_of=("up", "down")), "Which first."] = "up"
    after: Annotated[str, None, "The item before."] | None = None


def asked(query: str) -> Query:
    return read_query(Request({"type": "http", "query_string": query.encode()}), Query)


def test_what_is_not_there_has_its_default() -> None:
    assert asked("other=1") == Query()
    assert asked("limit=007&wait=.5&order=down&after=") == Query(7, 0.5, "down", "")


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("limit=101", "limit is 101; it must be a whole number from 1 to 100."),
        ("limit=0", "limit is 0; it must be a whole number from 1 to 100."),
        ("limit=-1", "limit is '-1'; give a whole number from 1 to 100."),
        ("limit=1.5", "limit is '1.5'; give a whole number from 1 to 100."),
        ("limit=" + NINES, f"limit is '{NINES[:39]}; give a whole number from 1 to 100."),
        ("limit=%D9%A3", "limit is '٣'; give a whole number from 1 to 100."),
        ("wait=soon", "wait is 'soon'; give a number from 0.5 to 2."),
        ("wait=nan", "wait is nan; it must be a number from 0.5 to 2."),
        ("wait=inf", "wait is inf; it must be a number from 0.5 to 2."),
        ("order=left", "order is 'left'; it must be one of up, down."),
    ],
)
def test_a_value_out_of_bounds_is_refused_in_words(query: str, complaint: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(query)
    assert str(caught.value) == complaint
    assert caught.value.param == query.partition("=")[0]


def test_the_document_says_the_same() -> None:
    assert query_schemas(Query) == {
        "limit": {
            "type": "integer", "minimum": 1, "maximum": 100, "default": 20,
            "description": "Most items.",
        },
        "wait": {
            "type": "number", "minimum": 0.5, "maximum": 2.0, "default": 1.0,
            "description": "Seconds.",
        },
        "order": {
            "type": "string", "enum": ["up", "down"], "default": "up",
            "description": "Which first.",
        },
        "after": {"type": "string", "description": "The item before."},
    }  # fmt: skip
