"""``build_regex_from_object`` under upstream's module name."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["build_regex_from_object"]


def build_regex_from_object(
    object: Any,
    whitespace_pattern: str | None = None,
) -> str:
    """A pattern of the JSON that a schema allows, for ``gen(regex=...)``. ``gen(schema=...)`` takes
    the same and enforces more.

    Args:
        object: a type (pydantic's and others), a JSON schema as a dict, or its text.
        whitespace_pattern: what may stand between two tokens of JSON; None: one optional space.

    Raises TypeError or ValueError where it is no schema, or holds what a pattern cannot say.
    """
    from outlines_core.json_schema import build_regex_from_schema
    from sglang.backend.output_types import json_schema_of

    return str(build_regex_from_schema(json.dumps(json_schema_of(object)), whitespace_pattern))
