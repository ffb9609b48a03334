"""Depth: nesting depth of JSON values."""

from __future__ import annotations

from typing import Any


def deeper(value: Any, levels: int) -> bool:
    """Return whether ``value`` (plain data) has more than ``levels`` levels of objects and lists.
    Time is linear in its size; there is no recursion."""
    level = [value]
    for _ in range(levels):
        groups = [node.values() if isinstance(node, dict) else node for node in level]
        level = [child for group in groups for child in group if isinstance(child, (dict, list))]
        if not level:
            return False
    return True
