"""Imports within the project: the modules exist, and have the names that are imported from them.

mypy reports neither for a module that it does not find: its setting ``ignore_missing_imports``
makes all names of one ``Any``. Imports inside functions and under ``TYPE_CHECKING`` count too, and
so do modules named in strings: in files that call ``import_module``, and behind ``-m``.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterator, Mapping

import pytest
from helpers.paths import ROOT

from tools.structure import FOLDERS, Module, origin, read_folders, uncollected

# Packages by folder; folders that are on Python's path themselves where their files run.
PACKAGES = {f"python/{folder}": package for package, folder in FOLDERS.items()}
PACKAGES |= {"benchmark": "benchmark", "tools": "tools"}
ON_PATH = ("test", "examples", "sgl-kernel/python")
NAMESPACES = {"benchmark", "tools", "helpers"}  # packages without an __init__
COMPILED = "sgl_kernel._C"

BEHIND_M = re.compile(r'"-m",\s*"([\w.]+)"')
BY_NAME = re.compile(r'"(sglang(?:\.\w+)+)(?::\w+)?"')

Imported = tuple[int, str, str]  # line, module, the name imported from it ("" for none)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements at whatever depth: expressions hold no import."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = getattr(node, field, None)
            pending += inner if isinstance(inner, list) else []


def imports(module: Module) -> Iterator[Imported]:
    for node in statements(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = origin(module, node)
            yield from ((node.lineno, start, alias.name) for alias in node.names)
    by_name = module.name.startswith("sglang.") and "import_module(" in module.source
    for pattern in (BEHIND_M, BY_NAME)[: 1 + by_name]:
        for found in pattern.finditer(module.source):
            yield module.source.count("\n", 0, found.start()) + 1, found[1], ""


class Names:
    """Names that the modules of the project bind."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._modules = modules
        self._bound: dict[str, set[str]] = {}
        self._roots = {name.partition(".")[0] for name in modules if "." not in name}
        self._roots |= NAMESPACES

    def unresolved(self, module: Module) -> list[str]:
        """Complaints about the imports of one module."""
        return [
            f"{module.name}:{line} imports {'.'.join(filter(None, [start, name]))}"
            for line, start, name in imports(module)
            if start.partition(".")[0] in self._roots and not self._resolves(start, name)
        ]

    def _resolves(self, module: str, name: str) -> bool:
        if not name:
            return module in self._modules or f"{module}.__main__" in self._modules
        full = f"{module}.{name}"
        return full in self._modules or full == COMPILED or name in self._of(module)

    def _of(self, module: str) -> set[str]:
        if module not in self._modules:
            return set()
        if module not in self._bound:
            table = symtable.symtable(self._modules[module].source, module, "exec")
            self._bound[module] = {"__name__", "__file__", "__path__", "__doc__"} | {
                each.get_name()
                for each in table.get_symbols()
                if each.is_assigned() or each.is_imported() or each.is_namespace()
            }
        return self._bound[module]


def project() -> dict[str, Module]:
    folders = {**PACKAGES, **dict.fromkeys(ON_PATH, "")}
    return read_folders({ROOT / folder: package for folder, package in folders.items()})


@pytest.mark.slow
def test_every_import_of_the_project_resolves() -> None:
    modules = project()
    names = Names(modules)
    with uncollected():
        assert [each for module in modules.values() for each in names.unresolved(module)] == []
    assert len(modules) > 1000


LAZY = "def f():\n    {0}\n"
TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {0}\n"
TRIED = "try:\n    pass\nexcept OSError:\n    with f():\n        {0}\n"


def complaints(name: str, source: str) -> list[str]:
    """Complaints about one file beside two others."""
    files = {
        "sglang": "", "sglang.ir": "from sglang.ir.nodes import Gen as Node",
        "sglang.ir.nodes": "class Gen: ...\nTYPES: tuple = ()",
        "helpers.paths": "ROOT = 1",
        "benchmark.curves.__main__": "",
        name: source,
    }  # fmt: skip
    packages = ("sglang", "sglang.ir")
    modules = {
        each: Module(each, each in packages, ast.parse(text), text) for each, text in files.items()
    }
    return Names(modules).unresolved(modules[name])


WRONG = [
    ("import sglang.irr", "sglang.irr"),
    ("import sglang.ir.Node", "sglang.ir.Node"),
    ("from sglang import node", "sglang.node"),
    ("from sglang.ir import nodez", "sglang.ir.nodez"),
    ("from sglang.ir.nodes import Node", "sglang.ir.nodes.Node"),
    ("from sglang.nodes import Gen", "sglang.nodes.Gen"),
    ("from . import other", "sglang.other"),
    ("from .ir.nodez import Gen", "sglang.ir.nodez.Gen"),
    ("from benchmark.curves import page", "benchmark.curves.page"),
    ('run(["python", "-m"' + ', "sglang.serve"])', "sglang.serve"),
    ('import_module(TABLE["sglang.ir.node"])', "sglang.ir.node"),
]


@pytest.mark.parametrize(("statement", "name"), WRONG)
@pytest.mark.parametrize("around", ["{0}", LAZY, TYPED, TRIED])
def test_a_wrong_import_is_named(statement: str, name: str, around: str) -> None:
    (found,) = complaints("sglang.planted", around.format(statement))
    assert found.startswith("sglang.planted:")
    assert found.endswith(f" imports {name}")


RIGHT = """
import sglang.ir.nodes, torch.nowhere
from sglang import ir, __name__ as name
from sglang.ir import Node, nodes
from .ir.nodes import TYPES
run(["-m", "benchmark.curves"], ["-m", "pytest"])
import_module("sglang.ir")
"""


def test_right_imports_and_those_of_others_pass() -> None:
    assert complaints("sglang.planted", RIGHT) == []
    assert complaints("test_planted", "from helpers.paths import ROOT") == []
    assert complaints("test_planted", "from helpers.path import ROOT") != []
