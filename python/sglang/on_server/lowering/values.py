"""Values of a submission: constants that JSON can represent."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 1 << 63  # integers must be below this number


class NotSendable(ValueError):
    """A value that a submission cannot contain."""


def sendable(value: Any) -> Any:
    """Return ``value`` if it consists of texts, finite numbers, bools, None and lists.

    Raise NotSendable for other values, also dicts: an object in a submission is a reference.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int) and -LARGEST <= value < LARGEST:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if type(value) is list:
        return [sendable(item) for item in value]
    raise NotSendable(
        f"{value!r:.60} cannot be sent to a server; give a text, a number, a bool, None or a list"
    )
