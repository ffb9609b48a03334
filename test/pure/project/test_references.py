"""Modules that docstrings and comments name exist, and hold the names that follow them."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from helpers.paths import PYTHON

HOMES = (PYTHON / "srt", PYTHON / "sglang", PYTHON)
REFERENCE = re.compile(r"``([a-z_]\w*(?:[./]\w+)+)``")
# Tests, data files, a key of GGUF files, and a field of a request.
ALLOWED = re.compile(r"test/.*|.*\.json|tokenizer\.(?:model|ggml\.pre)|config\.extensions")


@cache
def packages() -> frozenset[str]:
    found = {path.name for home in HOMES for path in home.iterdir() if path.is_dir()}
    return frozenset(found - {"__pycache__"})


@cache
def names(source: Path) -> frozenset[str]:
    """Names in the code of a module, and its strings of one word (``__all__``)."""
    if not source.is_file():
        return frozenset()
    with source.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    kinds = (tokenize.NAME, tokenize.STRING)
    return frozenset(each.string.strip("\"'") for each in tokens if each.type in kinds)


def resolved(home: Path, parts: list[str]) -> bool:
    """Whether ``parts`` lead from a folder to a package, a module, or a name in one."""
    here = home
    while parts and (here / parts[0]).is_dir():
        here, parts = here / parts[0], parts[1:]
    if parts and (here / f"{parts[0]}.py").is_file():
        here, parts = here / f"{parts[0]}.py", parts[1:]
    if here == home or not parts:
        return here != home
    return parts[0] in names(here if here.is_file() else here / "__init__.py")


def stale(line: str) -> Iterator[str]:
    """References of a line to modules or names that do not exist."""
    for reference in REFERENCE.findall(line):
        parts = re.split("[./]", reference.removesuffix(".py"))
        if parts[0] not in packages() or ALLOWED.fullmatch(reference):
            continue
        if not any(resolved(home, parts) for home in HOMES):
            yield reference


def test_modules_named_in_docstrings_exist() -> None:
    found, files = [], 0
    for path in sorted(PYTHON.rglob("*.py")):
        files += 1
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{path.relative_to(PYTHON)}:{number}: {name}" for name in stale(line)]
    assert files > 100
    assert found == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("see ``core/batch`` and ``core.batch.Row``", []),
        ("``sglang.srt.core.batch`` reads ``config.json``", []),
        ("``params.n`` is no module", []),
        ("see ``core/heaps``", ["core/heaps"]),
        ("``core.batch.Rows``", ["core.batch.Rows"]),
        ("``sglang.srt.cores``", ["sglang.srt.cores"]),
    ],
)
def test_a_stale_reference_is_found(line: str, expected: list[str]) -> None:
    assert list(stale(line)) == expected
