"""The list of wheels for a GPU machine, against pyproject.toml and what an image with torch has."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmark.gpu.wheels import EXTRAS, FLASHINFER, PRESENT, TARGET, TESTS, declared, page, wheels

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib (Python 3.11)")


def listed() -> dict[str, Requirement]:
    found = [Requirement(line) for line in wheels()]
    assert len({r.name for r in found}) == len(found), "a package twice"
    return {r.name: r for r in found}


def test_runtime_requirements_are_bundled_or_on_the_machine() -> None:
    names, extras = set(listed()), declared()
    wanted = [r for name in ("", *EXTRAS) for r in extras[name]]
    wanted += [r for r in extras["dev"] if r.name in TESTS]
    assert {r.name for r in wanted} >= {"msgspec", "starlette", "flashinfer-python", *TESTS}
    for r in wanted:
        if r.marker is None or r.marker.evaluate(TARGET):
            assert canonicalize_name(r.name) in names | PRESENT | {"sglang"}, r


def test_torch_and_what_it_brings_stay_where_they_are() -> None:
    names = set(listed())
    assert not names & PRESENT
    assert not [n for n in names if n.startswith(("nvidia-cu", "nvidia-nccl", "cuda-"))]


def test_what_the_requirements_require_is_there_too() -> None:
    names = set(listed())
    assert {"anyio", "idna", "click", "pluggy", "iniconfig", "execnet", "pydantic-core"} <= names
    assert {Requirement(text).name for text in FLASHINFER} <= names


def test_versions_fit_what_pyproject_allows() -> None:
    carried, extras = listed(), declared()
    assert str(carried["flashinfer-python"].specifier) == "==0.6.8.post1"
    assert str(carried["apache-tvm-ffi"].specifier) == "==0.1.9"
    for r in [r for name in ("", *EXTRAS) for r in extras[name]]:
        own = carried.get(canonicalize_name(r.name))
        for pin in own.specifier if own else ():
            assert r.specifier.contains(pin.version), (r, own)


@pytest.mark.slow
def test_the_page_is_a_requirements_file() -> None:
    lines = page().splitlines()
    assert [line for line in lines if not line.startswith("#")] == wheels()
    assert any("pip download" in line for line in lines)
    assert any("--no-index" in line for line in lines)
