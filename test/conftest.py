"""Set up every test run: property tests do not depend on clock or chance, and long files run first.

``pythonpath`` in pyproject.toml makes ``helpers``, ``benchmark`` and ``tools`` importable.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from operator import attrgetter

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: pytest-timeout alone limits time. Examples are the same every time;
# ``--hypothesis-profile random`` draws others.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **UNTIMED)
settings.register_profile("random", **UNTIMED)
settings.load_profile("fixed")

# What takes long in one file. With several workers it comes first: at the end it would leave the
# others idle (``make test``; pytest-xdist's own order is by the number of tests).
LONG = (
    "test_paper_smoke.py", "test_simulation.py", "test_lint.py", "test_triton_compiled.py",
    "test_openapi.py", "test_matrix.py", "test_triton_interpreted.py", "test_soak.py",
    "test_gpu_bodies.py", "test_benchmark_peers.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What is drawn without a seed does not depend on the tests that ran before in this process."""
    random.seed(0)
    for name, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if name in sys.modules:
            attrgetter(seed)(sys.modules[name])(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


@pytest.fixture
def hung_up() -> Iterator[None]:
    """What is started ends by SIGHUP, also where the tests run under nohup, which has it ignored by
    all that follow."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
