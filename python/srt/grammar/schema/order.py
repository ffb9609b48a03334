"""llguidance follows rules by recursion, as deep as they refer to each other, on the stack of its
thread. A long chain is met from its end, where each rule finds the next one made already."""

from __future__ import annotations

import re

from sglang.srt.grammar.schema.quoted import NEVER

DEEPEST = 200
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/')
_NAME = re.compile(r"[a-z]\w*")


def shallow(start: str, rules: list[str]) -> tuple[str, list[str]]:
    """A first rule and rules of the same language, that refer to each other less deeply."""
    bodies = {name: body for name, _, body in (rule.partition(": ") for rule in rules)}
    order, depth = _post_order(start, bodies)
    if depth <= DEEPEST:
        return start, rules
    first = f"{start}_first"
    never = f"{start.upper()}_NEVER"
    ends = " | ".join(name for name in order if name != start)
    return first, [*rules, f"{never}: /{NEVER}/", f"{first}: {never} ({ends}) | {start}"]


def _post_order(start: str, bodies: dict[str, str]) -> tuple[list[str], int]:
    """The rules met from ``start``, each after those it refers to, and how deep they are."""
    order: list[str] = []
    seen = {start}
    stack = [(start, _referred(bodies.get(start, ""), bodies))]
    depth = 1
    while stack:
        name, left = stack[-1]
        while left and left[-1] in seen:
            left.pop()
        if left:
            after = left.pop()
            seen.add(after)
            stack.append((after, _referred(bodies[after], bodies)))
            depth = max(depth, len(stack))
        else:
            order.append(name)
            stack.pop()
    return order, depth


def _referred(body: str, bodies: dict[str, str]) -> list[str]:
    names = _NAME.findall(_STRINGS.sub(" ", body))
    return [name for name in dict.fromkeys(reversed(names)) if name in bodies]
