"""Values held against the OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema


def fits(told: dict[str, Any], value: Any, schema: dict[str, Any]) -> None:
    """Assert that ``value`` is as ``schema``, a part of the document ``told``, says."""
    whole = {**schema, "components": told["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)
