"""Values of a submission: what JSON can hold, and references to what is made elsewhere."""

from __future__ import annotations

import math
from typing import Any

LARGEST = 1 << 63  # a whole number is below it


class NotSendable(ValueError):
    """A value that a submission cannot hold."""


def sendable(value: Any) -> Any:
    """Return ``value``, made of texts, finite numbers, bools, None and lists.

    Raise NotSendable for anything else: an object in a submission is a reference.
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
