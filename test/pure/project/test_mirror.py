"""Test files mirror packages: the tests of a file are found by its path.

``test/<need>/<package>/test_<topic>.py`` tests a package that exists: ``pure/srt/engine`` stands
for python/srt/engine, ``cpu/sgl_kernel`` for the kernels' package, ``pure/benchmark/paper`` for
benchmark/paper. Tests of the project as a whole are in ``project``. Commands and servers as users
start them are tested in test/e2e, which mirrors nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from helpers.paths import ROOT, TESTS

NEEDS = ("pure", "cpu", "gpu")
# Folders of packages, by the first folder of a test.
PACKAGES = {
    "sglang": ROOT / "python" / "sglang",
    "srt": ROOT / "python" / "srt",
    "sgl_kernel": ROOT / "sgl-kernel" / "python" / "sgl_kernel",
    "benchmark": ROOT / "benchmark",
    "tools": ROOT / "tools",
}


def faults(files: list[Path]) -> list[str]:
    """Complaints about test files, whose paths begin at test/."""
    found = []
    for file in files:
        _, *folders, name = file.parts
        if not name.startswith("test_"):
            found.append(f"{file}: only test files here; helpers are in test/helpers")
        elif not folders:
            found.append(f"{file} is in no package's folder")
        elif folders != ["project"] and not _package(folders):
            found.append(f"{file}: there is no package {'/'.join(folders)}")
    names = Counter(file.name for file in files)
    return found + [
        f"{name}: {count} files have this name" for name, count in names.items() if count > 1
    ]


def _package(folders: list[str]) -> bool:
    top, *rest = folders
    path = PACKAGES[top].joinpath(*rest) if top in PACKAGES else None
    return path is not None and path.is_dir() and any(path.glob("*.py"))


def test_files_mirror_packages() -> None:
    files = [path.relative_to(TESTS) for need in NEEDS for path in (TESTS / need).rglob("*.py")]
    assert len(files) > 150
    assert faults(files) == []
    twice = {path.name for path in (TESTS / "e2e").rglob("test_*.py")} & {f.name for f in files}
    assert not twice, "pytest cannot collect two files of one name"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (["pure/test_radix.py"], "is in no package's folder"),
        (["pure/srt/nothing/test_radix.py"], "there is no package srt/nothing"),
        (["pure/elsewhere/test_radix.py"], "there is no package elsewhere"),
        (["pure/srt/engine/tools.py"], "only test files here"),
        (["pure/srt/engine/test_a.py", "cpu/srt/engine/test_a.py"], "2 files have this name"),
    ],
)
def test_a_misplaced_file_is_named(files: list[str], complaint: str) -> None:
    (found,) = faults([Path(file) for file in files])
    assert complaint in found


def test_each_need_has_its_rule() -> None:
    assert faults([Path("gpu/srt/worker/test_a.py"), Path("cpu/project/test_b.py")]) == []
