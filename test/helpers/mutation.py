"""Mutations: one small fault put into the real code, to see whether a test would notice.

A mutation names a function, a pattern (``code_pattern``) that matches one node of its syntax tree,
and an operator that changes this node, or the part of it that ``X`` stands for. The mutant is
compiled from the changed tree of the module and becomes the function's code, so every caller runs
it, also one that imported the function by name.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from helpers.code_pattern import Found, find, is_letter, parse
from helpers.tables import Corrupt


class Place(NamedTuple):
    """A node to change.

    Attributes:
        found: the nodes that the letters of the pattern stand for.
        names: names that code of the function may read.
    """

    node: ast.AST
    found: Found
    names: frozenset[str]


Operator = Callable[[Place], ast.AST | None]  # makes the new node; None removes the old one


class Mutation(NamedTuple):
    """A change of the function ``name`` of a class or module.

    Attributes:
        nth: which match is meant where the pattern has several, from 1 on, in source order.
    """

    owner: type | ModuleType
    name: str
    pattern: str
    operator: Operator
    nth: int = 0


# -- operators -----------------------------------------------------------------------------------


def drop(place: Place) -> None:
    """Remove a statement, an operand of ``and`` or ``or``, an argument or an element."""


def negate(place: Place) -> ast.AST:
    return ast.UnaryOp(ast.Not(), _expression(place))


def always(place: Place) -> ast.AST:
    """Replace a condition by True."""
    return ast.Constant(True)


def never(place: Place) -> ast.AST:
    """Replace a condition by False."""
    return ast.Constant(False)


def constant(value: Any) -> Operator:
    return lambda place: ast.Constant(value)


def plus(number: int) -> Operator:
    """Add a number to an expression: off by one."""
    sign = ast.Add() if number >= 0 else ast.Sub()
    return lambda place: ast.BinOp(_expression(place), sign, ast.Constant(abs(number)))


def compare(sign: str) -> Operator:
    """Compare the same operands by another sign: ``compare("<=")``."""
    pattern = parse(f"a {sign} b")
    assert isinstance(pattern, ast.Compare)

    def operator(place: Place) -> ast.AST:
        assert isinstance(place.node, ast.Compare), f"{ast.unparse(place.node)} compares nothing"
        return ast.Compare(place.node.left, pattern.ops, place.node.comparators)

    return operator


def become(fragment: str) -> Operator:
    """Replace a node by other code. Letters stand for the same nodes as in the pattern."""
    return lambda place: _filled(fragment, place)


def before(fragment: str) -> Operator:
    """Run one more statement before a statement."""

    def operator(place: Place) -> ast.AST:
        assert isinstance(place.node, ast.stmt), f"{ast.unparse(place.node)} is no statement"
        new = _filled(fragment, place)
        first = ast.Expr(new) if isinstance(new, ast.expr) else new
        assert isinstance(first, ast.stmt)
        return ast.If(ast.Constant(True), [first, place.node], [])

    return operator


def _expression(place: Place) -> ast.expr:
    assert isinstance(place.node, ast.expr), f"{ast.unparse(place.node)} is no expression"
    return place.node


def _filled(fragment: str, place: Place) -> ast.AST:
    """The tree of the fragment, letters filled in.

    Raises AssertionError where it reads a name that the function does not know: a NameError would
    look like a mutant that was caught.
    """
    tree = parse(fragment)
    nodes = list(ast.walk(tree))
    made = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name) and not is_letter(node.id)]
    made |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in names:
        known = node.id in place.names or node.id in made
        assert known, f"{fragment!r} reads {node.id}, a name unknown there; adapt the mutation"
    return _Filler(place.found).visit(tree)


class _Filler(ast.NodeTransformer):
    def __init__(self, found: Found) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        new = copy.deepcopy(self._found.get(node.id, node))
        if isinstance(new, (ast.Name, ast.Attribute, ast.Subscript)):
            new.ctx = node.ctx
        return new


# -- putting them in -----------------------------------------------------------------------------


def mutate(monkeypatch: pytest.MonkeyPatch, *mutations: Mutation) -> None:
    """Run the mutants for the rest of the test. Several mutations may concern one function.

    Raises AssertionError where a function does not exist or a pattern does not match once.
    """
    trees: dict[str, ast.Module] = {}
    changes: dict[int, tuple[ast.AST, ast.AST | None]] = {}
    functions: dict[str, FunctionType] = {}
    for mutation in mutations:
        function = _function(mutation)
        module = function.__module__
        if module not in trees:
            trees[module] = ast.parse(inspect.getsource(sys.modules[module]))
        place = _place(mutation, _definition(trees[module], function))
        assert id(place.node) not in changes, f"two mutations of {ast.unparse(place.node)}"
        changes[id(place.node)] = place.node, mutation.operator(place)
        functions[f"{module}:{function.__qualname__}"] = function
    changer = _Changer(changes)
    changed = {
        module: ast.fix_missing_locations(changer.visit(tree)) for module, tree in trees.items()
    }
    assert not changer.left, "a mutation is inside a node that another one replaces"
    for function in functions.values():
        file = sys.modules[function.__module__].__file__ or "?"
        code = compile(changed[function.__module__], file, "exec", dont_inherit=True)
        for name in function.__qualname__.split("."):
            code = _inner(code, name)
        monkeypatch.setattr(function, "__code__", code)


def caught(run: Callable[[int], object], seeds: Iterable[int]) -> bool:
    """Whether ``run`` of one of the seeds fails, in whatever way."""
    for seed in seeds:
        try:
            run(seed)
        except (Exception, Corrupt):
            return True
    return False


def _function(mutation: Mutation) -> FunctionType:
    found = inspect.getattr_static(mutation.owner, mutation.name, None)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    where = f"{mutation.owner.__name__}.{mutation.name}"
    assert isinstance(found, FunctionType), f"there is no function {where}; adapt the mutation"
    return found


def _definition(module: ast.Module, function: FunctionType) -> ast.FunctionDef:
    node: Any = module
    for name in function.__qualname__.split("."):
        (node,) = (
            child
            for child in node.body
            if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and child.name == name
        )
    assert isinstance(node, ast.FunctionDef)
    return node


def _place(mutation: Mutation, function: ast.FunctionDef) -> Place:
    """Find the one node that a mutation means."""
    pattern, where = mutation.pattern, f"{mutation.owner.__name__}.{mutation.name}"
    found = [each for statement in function.body for each in find(parse(pattern), statement)]
    lines = "".join(f"\n  line {_line(node)}: {ast.unparse(node)}" for node, _ in found)
    if mutation.nth:
        enough = len(found) >= mutation.nth
        assert enough, f"{pattern!r} is not {mutation.nth} times in {where}; adapt it{lines}"
        found = [found[mutation.nth - 1]]
    assert found, f"{pattern!r} is not in {where}; adapt the mutation"
    count = len(found)
    assert count == 1, f"{pattern!r} is {count} times in {where}; make it unique or say nth{lines}"
    node, letters = found[0]
    return Place(letters.get("X", node), letters, _names(mutation, function))


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _names(mutation: Mutation, function: ast.FunctionDef) -> frozenset[str]:
    """The names that code of the function may read."""
    nodes = list(ast.walk(function))
    own = {node.id for node in nodes if isinstance(node, ast.Name)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(own | _function(mutation).__globals__.keys() | vars(builtins).keys())


def _inner(code: CodeType, name: str) -> CodeType:
    (inner,) = (c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return inner


class _Changer(ast.NodeTransformer):
    """Replaces nodes. ``left``: the changes still to make, by the id of the old node."""

    def __init__(self, changes: dict[int, tuple[ast.AST, ast.AST | None]]) -> None:
        self.left = changes

    def visit(self, node: ast.AST) -> Any:
        if id(node) in self.left:
            _, new = self.left.pop(id(node))
            return ast.Pass() if new is None and isinstance(node, ast.stmt) else new
        self.generic_visit(node)
        if isinstance(node, ast.Expr) and not isinstance(getattr(node, "value", None), ast.expr):
            return getattr(node, "value", None) or ast.Pass()  # a call was a statement
        if isinstance(node, ast.BoolOp) and len(node.values) == 1:
            return node.values[0]
        return node
