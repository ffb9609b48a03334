"""Behaviours: the table of docs/architecture.md names the file and the function of each."""

from __future__ import annotations

import ast

import pytest
from helpers.paths import PYTHON, ROOT

PAGE = ROOT / "docs" / "architecture.md"
HEAD = "| behaviour | file | function |"


def rows() -> list[tuple[str, str, str]]:
    """Behaviour, file below ``python/`` and function of each row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    after = lines[lines.index(HEAD) + 2 :]
    cells = [row.strip("| ").split(" | ") for row in after[: after.index("")]]
    return [(name, file.strip("`"), function.strip("`")) for name, file, function in cells]


def defined(tree: ast.AST, names: list[str]) -> bool:
    """Whether a class or function is defined, and in it the others, each in the one before."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return not names or any(
        defined(node, names[1:])
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, kinds) and node.name == names[0]
    )


def test_the_table_has_ten_behaviours() -> None:
    assert len({behaviour for behaviour, _, _ in rows()}) == len(rows()) >= 10


@pytest.mark.parametrize(("behaviour", "file", "function"), rows())
def test_a_behaviour_is_where_the_table_says(behaviour: str, file: str, function: str) -> None:
    tree = ast.parse((PYTHON / file).read_text(encoding="utf-8"))
    assert defined(tree, function.split(".")), f"{behaviour}: no {function} in {file}"


def test_a_missing_method_is_noticed() -> None:
    tree = ast.parse("class Radix:\n    def match(self): ...\ndef evict(): ...")
    assert defined(tree, ["Radix", "match"])
    assert defined(tree, ["evict"])
    assert not defined(tree, ["Radix", "evict"])
    assert not defined(tree, ["match"])
