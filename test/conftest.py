"""Makes ``helpers`` importable from every test folder, property tests free of the clock, and long
files come first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no failure: pytest-timeout alone limits time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# What takes long in one file. With several workers it comes first: at the end it would leave the
# others idle (``make test``; pytest-xdist's own order is by the number of tests).
LONG = (
    "test_paper_smoke.py", "test_simulation.py", "test_lint.py", "test_triton_compiled.py",
    "test_openapi.py", "test_matrix.py", "test_triton_interpreted.py", "test_soak.py",
    "test_gpu_bodies.py", "test_benchmark_peers.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
