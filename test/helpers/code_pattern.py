"""Patterns over Python syntax trees: a fragment of code with wildcards, compared node by node.

    _       any one node: an expression, an assignment's target, an attribute's or a function's name
    X       one upper-case letter: the same, and remembered; equal letters match equal code
    ...     any number of arguments, elements, operands or statements

``_.locks`` is the attribute ``locks`` of anything, ``give(X)`` the argument of a call, ``if _ > 0:
...`` a statement. Layout, comments and whatever a wildcard matches may change. A pattern of a call
without keywords also matches calls with keywords.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

Found = dict[str, ast.AST]

# Fields without a meaning of their own: the position of a name tells whether it is read or written.
IGNORED = frozenset({"ctx", "kind", "type_comment"})


def parse(fragment: str) -> ast.AST:
    """The tree of a fragment: its only statement, or the expression that this is."""
    statements = ast.parse(fragment).body
    assert len(statements) == 1, f"{fragment!r} is {len(statements)} statements; write one"
    statement = statements[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def find(pattern: ast.AST, tree: ast.AST) -> Iterator[tuple[ast.AST, Found]]:
    """Yield each node of ``tree`` that the pattern matches, in source order, and the nodes that
    its letters stand for."""
    found: Found = {}
    if matches(pattern, tree, found):
        yield tree, found
    for child in ast.iter_child_nodes(tree):
        yield from find(pattern, child)


def is_letter(name: str) -> bool:
    return len(name) == 1 and name.isalpha() and name.isupper()


def matches(pattern: Any, node: Any, found: Found) -> bool:
    """Whether a pattern matches a node, a list of nodes or a plain value. Adds the nodes that
    letters stand for to ``found``."""
    if isinstance(pattern, list):
        return isinstance(node, list) and _match_all(pattern, node, found)
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and pattern in ("_", node)
    if isinstance(pattern, ast.Name) and isinstance(node, (ast.expr, ast.stmt)):
        if pattern.id == "_":
            return True
        if is_letter(pattern.id):
            known = found.setdefault(pattern.id, node)
            return known is node or ast.unparse(known) == ast.unparse(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and not pattern.keywords:
        return matches(pattern.func, node.func, found) and matches(pattern.args, node.args, found)
    for name, value in ast.iter_fields(pattern):
        if name in IGNORED or (name == "orelse" and not value):
            continue
        if not matches(value, getattr(node, name), found):
            return False
    return True


def _match_all(patterns: Sequence[Any], nodes: Sequence[Any], found: Found) -> bool:
    if not patterns:
        return not nodes
    first, rest = patterns[0], patterns[1:]
    if not _is_rest(first):
        return (
            bool(nodes) and matches(first, nodes[0], found) and _match_all(rest, nodes[1:], found)
        )
    for skipped in range(len(nodes) + 1):
        tried = dict(found)
        if _match_all(rest, nodes[skipped:], tried):
            found.update(tried)
            return True
    return False


def _is_rest(pattern: Any) -> bool:
    if isinstance(pattern, ast.Expr):
        pattern = pattern.value
    return isinstance(pattern, ast.Constant) and pattern.value is Ellipsis
