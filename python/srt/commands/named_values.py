"""Named values: ``NAME=VALUE`` arguments of a command, as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def named_values(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Values by name; each is JSON, or else a text. Raises ValueError, naming ``flag``, where one
    has no value or is given twice."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{flag} {pair} has no value; write {pair}=VALUE")
        if name in found:
            raise ValueError(f"{flag} {name} is given twice; give it once")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
