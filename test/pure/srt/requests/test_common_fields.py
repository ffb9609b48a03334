"""Request fields: the bounds that a body's struct declares are enforced and documented."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest
from sglang.srt.requests.common_fields import MAX_NAME, PRIORITY_LIMIT, declarations
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.request_fields import convert
from sglang.srt.web.openapi.limits import fields_of
from sglang.srt.web.route import Route
from sglang.srt.web.routes import ROUTES

BODIES = {route.body: route for route in ROUTES if route.body is not None}
# Other fields that a body must have.
NEEDED: dict[str, dict[str, Any]] = {
    "ChatRequest": {"messages": []},
    "MessagesBody": {"messages": []},
    "CloseSession": {"session_id": "s"},
    "LoadBody": {"lora_name": "a", "lora_path": "b"},
    "UnloadBody": {"lora_name": "a"},
    "DetokenizeBody": {"tokens": []},
    "GetBody": {"session_id": "s"},
    "SetBody": {"session_id": "s", "semantic_var_id": "v", "value": ""},
    "CancelBody": {"session_id": "s"},
    "BatchBody": {"input_file_id": "f", "endpoint": "/v1/completions"},
}
NUMBERS = [-(2**63) - 1, -PRIORITY_LIMIT - 1, -PRIORITY_LIMIT, -2, -1, 0, 1, 2, 128, 129, 604_800,
           604_801, PRIORITY_LIMIT - 1, PRIORITY_LIMIT, 2**63]  # fmt: skip
TEXTS = ["", "mean", "high", "float", "x", "x" * 512, "x" * MAX_NAME, "x" * (MAX_NAME + 1)]
VALUES: list[Any] = [*NUMBERS, *TEXTS, [TEXTS[-2], None], [TEXTS[-1], None], [TEXTS[4], TEXTS[-1]]]


def taken(body: type[msgspec.Struct], name: str, value: Any) -> str | None:
    """The field that a value is refused for; None where it is taken."""
    try:
        convert({**NEEDED.get(body.__name__, {}), name: value}, body)
    except RequestError as error:
        return error.param or "?"
    return None


@pytest.mark.parametrize("route", BODIES.values(), ids=lambda route: route.body.__name__)
def test_bounds_are_enforced_as_documented(route: Route) -> None:
    body = route.body
    assert body is not None
    _, components = msgspec.json.schema_components([body], ref_template="#/{name}")
    told = fields_of(body, components[body.__name__]["properties"])
    for name, parameter in declarations(body).items():
        if parameter.bounds.free:
            continue
        assert told[name]["description"] == parameter.description
        plain = fields_of(object, {name: components[body.__name__]["properties"][name]})[name]
        typed = jsonschema.Draft202012Validator(plain)
        bounded = jsonschema.Draft202012Validator(told[name])
        for value in filter(typed.is_valid, VALUES):
            refused = taken(body, name, value)
            assert refused == (None if bounded.is_valid(value) else name), (name, value)


class Untouched(list[int]):
    """A list that may not be read."""

    def __iter__(self) -> Any:
        raise AssertionError("a prompt was read for bounds that it has not")


def test_values_without_bounds_are_not_read() -> None:
    [generate] = [body for body in BODIES if body.__name__ == "GenerateRequest"]
    assert declarations(generate)["input_ids"].complaint(Untouched([1])) == ""
    anything: dict[str, Any] = {
        "choices": None,
        "temperature": float("nan"),
        "stop": [],
        "regex": "a",
    }
    for value in (anything, [anything, {}]):
        assert taken(generate, "sampling_params", value) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "priority",
            2**31,
            "priority is 2147483648; it must be a whole number that fits in 32 bits.",
        ),
        ("cache_salt", "x" * 1025, "cache_salt has 1025 characters; at most 1024."),
        ("extra_key", ["x", None, "x" * 1025], "extra_key has 1025 characters; at most 1024."),
        ("rid", "x" * 1025, "rid has 1025 characters; at most 1024."),
    ],
)
def test_message_names_field_value_and_limit(name: str, value: Any, message: str) -> None:
    [generate] = [body for body in BODIES if body.__name__ == "GenerateRequest"]
    with pytest.raises(RequestError) as caught:
        convert({"text": "a", name: value}, generate)
    assert (caught.value.message, caught.value.param) == (message, name)
