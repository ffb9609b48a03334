"""A mutation finds one node of a function, changes it and nothing else, or says why it cannot."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

import pytest
from helpers.code_pattern import find, parse
from helpers.mutation import (
    Mutation,
    Operator,
    always,
    become,
    before,
    compare,
    constant,
    drop,
    mutate,
    negate,
    never,
    plus,
)

HERE = sys.modules[__name__]


def total(numbers: list[int], least: int = 0) -> int:
    found = 0
    for number in numbers:
        if number > least and number != 7:
            found += number
    return found


class Box:
    def __init__(self, size: int) -> None:
        self.items: list[int] = []
        self.size = size

    @property
    def full(self) -> bool:
        return len(self.items) >= self.size

    @staticmethod
    def double(number: int) -> int:
        return 2 * number

    def put(self, *items: int) -> int:
        self.items.extend(items)
        self.items.sort()
        return len(self.items) - 1


NUMBERS = [1, 7, 2, 3]


@pytest.mark.parametrize(
    ("pattern", "operator", "value"),
    [
        ("_ > _", negate, 0),
        ("_ > _", compare("<="), 0),
        ("_ > least", always, 6),
        ("_ > _", never, 0),
        ("_ != 7", drop, 13),
        ("_ and X", drop, 13),
        ("_ > X", constant(2), 3),
        ("_ != X", plus(-4), 10),
        ("_ += X", plus(1), 9),
        ("_ += _", drop, 0),
        ("A += B", become("A = B"), 3),
        ("A > B and _", become("B < A"), 13),
        ("return _", before("found = -found"), -6),
        ("if _: ...", before("least = 2"), 3),
        ("for _ in X: ...", become("X[:1]"), 1),
        ("return X", become("sum(numbers)"), 13),
    ],
)
def test_an_operator_changes_one_place(
    monkeypatch: pytest.MonkeyPatch, pattern: str, operator: Operator, value: int
) -> None:
    mutate(monkeypatch, Mutation(HERE, "total", pattern, operator))
    assert total(NUMBERS) == value
    monkeypatch.undo()
    assert total(NUMBERS) == 6


@pytest.mark.parametrize(
    ("name", "pattern", "operator", "act", "value"),
    [
        ("full", "_ >= _", compare(">"), lambda box: box.full, False),
        ("double", "X * _", constant(3), lambda box: box.double(5), 15),
        ("put", "_.sort()", drop, lambda box: (box.put(0), box.items)[1], [3, 2, 0]),
        ("put", "_.extend(_)", drop, lambda box: box.put(5), 1),
        ("put", "len(_) - X", constant(0), lambda box: box.put(5), 3),
    ],
)
def test_methods_and_properties_have_mutants(
    monkeypatch: pytest.MonkeyPatch, name: str, pattern: str, operator: Operator,
    act: Callable[[Box], Any], value: object,
) -> None:  # fmt: skip
    box = Box(2)
    box.items += [3, 2]
    mutate(monkeypatch, Mutation(Box, name, pattern, operator))
    assert act(box) == value


def test_several_mutations_concern_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(
        monkeypatch,
        Mutation(HERE, "total", "_ != 7", drop),
        Mutation(HERE, "total", "_ > X", constant(2)),
        Mutation(Box, "put", "_.sort()", drop),
    )
    assert total(NUMBERS) == 10
    box = Box(9)
    box.put(2, 1)
    assert box.items == [2, 1]


def test_the_nth_match_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Mutation(Box, "put", "_.items", become("[1, 2, 3, 4]"), nth=3))
    assert Box(9).put() == 3


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (Mutation(Box, "take", "_", drop), "there is no function Box.take; adapt the mutation"),
        (Mutation(Box, "put", "_.clear()", drop), "'_.clear()' is not in Box.put; adapt"),
        (Mutation(Box, "put", "_.items", drop), "'_.items' is 3 times in Box.put; make it unique"),
        (Mutation(Box, "put", "_.items", drop, nth=4), "'_.items' is not 4 times in Box.put"),
        (Mutation(Box, "put", "_.sort()", become("f(x)")), "'f(x)' reads f, a name unknown there"),
        (Mutation(Box, "put", "a; b", drop), "'a; b' is 2 statements; write one"),
        (Mutation(Box, "put", "_.sort()", compare(">")), "compares nothing"),
        (Mutation(Box, "put", "_.sort()", before("items")), "is no statement"),
    ],
)
def test_an_address_without_one_place_is_an_error(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation, message: str
) -> None:
    with pytest.raises(AssertionError) as caught:
        mutate(monkeypatch, mutation)
    assert message in str(caught.value)


def test_two_mutations_of_one_place_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Mutation(HERE, "total", "_ > X", constant(1))
    with pytest.raises(AssertionError, match="two mutations of"):
        mutate(monkeypatch, inner, inner)
    with pytest.raises(AssertionError, match="inside a node that another one replaces"):
        mutate(monkeypatch, inner, Mutation(HERE, "total", "_ > _", always))


@pytest.mark.parametrize(
    ("pattern", "code", "count"),
    [
        ("_.a", "x.a + y().a + a", 2),
        ("f(...)", "f() + f(1, 2) + f(x, k=3) + g()", 3),
        ("f(_, ..., X)", "f(1) + f(1, 2) + f(1, 2, 3)", 2),
        ("f(k=X)", "f(k=1) + f(1, k=2) + f(j=1)", 1),
        ("A - A", "x - x, x.y - x.y, x - y", 2),
        ("_ or ... or X", "a or b or c, a or b", 2),
        ("A.a = A.b", "x.a = x.b\nx.a = y.b", 1),
        ("X, _ = _", "a, b = c\nd, e, f = g", 1),
        ("if _: ...", "if a:\n    b\nelse:\n    c", 1),
        ("while _: break", "while a:\n    break\nwhile b:\n    c", 1),
        ("1", "True, 1, 1.0, '1'", 1),
        ("_._", "a.b, a", 1),
    ],
)
def test_a_pattern_matches(pattern: str, code: str, count: int) -> None:
    assert len(list(find(parse(pattern), ast.parse(code)))) == count
