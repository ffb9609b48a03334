"""Set up every test run: property tests do not depend on clock or chance, and long files run first.

``pythonpath`` in pyproject.toml makes ``helpers``, ``benchmark`` and ``tools`` importable.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: pytest-timeout alone limits time. Examples are the same every time;
# ``--hypothesis-profile random`` chooses others.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **UNTIMED)
settings.register_profile("random", **UNTIMED)
settings.load_profile("fixed")

# Files that take long. With several workers they run first: at the end they would leave the other
# workers idle (``make test``; pytest-xdist's own order is by the number of tests).
LONG = (
    "test_openapi.py", "test_ranks_server.py", "test_matrix.py", "test_lint.py",
    "test_supervised.py", "test_paper_smoke.py", "test_server.py", "test_triton_compiled.py",
    "test_gpu_bodies.py", "test_benchmark_gpu.py", "test_triton_interpreted.py",
    "test_ranks_model.py", "test_simulation.py", "test_soak.py", "test_benchmark_peers.py",
    "test_mutations.py", "test_supervisor.py", "test_stop_watch.py", "test_interception.py",
    "test_engine_process.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Count failures in this process. pytest-rerunfailures asks the controller before each test, in
    case a worker was replaced: messages that TCP (Nagle's algorithm) holds back, some 45 ms a
    test. Here no worker is replaced (``--max-worker-restart 0``)."""
    if hasattr(config, "workerinput") and hasattr(config, "failures_db"):
        from pytest_rerunfailures import StatusDB

        config.failures_db = StatusDB()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported until the end: the garbage collector need not look at half a million
    objects, some 0.2 s, whenever a test collects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the generators: a random number does not depend on the tests that ran before in this
    process."""
    random.seed(0)
    for name, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if name in sys.modules:
            attrgetter(seed)(sys.modules[name])(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Disarm the watchdog of a GPU benchmark's case (``Bench.first``): it would end this process
    two minutes later, in the middle of another test. After a file, collect its garbage and keep the
    rest until the end, as what was imported: reports and caches of thousands of tests cost each
    later collection up to 0.3 s."""
    faulthandler.cancel_dump_traceback_later()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print why tests that were tried again had failed: such a failure may not come again soon."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def certificates() -> Iterator[None]:
    """Read the public certificates once. OpenAI's and Anthropic's packages read them for each
    client, 30 ms, and the tests make hundreds of clients that speak plain HTTP."""
    create, shared = ssl.create_default_context, list[ssl.SSLContext]()

    def create_once(*args: Any, **options: Any) -> ssl.SSLContext:
        if args or options != {"cafile": bundle}:
            return create(*args, **options)
        if not shared:
            shared.append(create(**options))
        return shared[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", bundle := certifi.where())
        patch.setattr(ssl, "create_default_context", create_once)
        yield


@pytest.fixture
def hung_up() -> Iterator[None]:
    """Let SIGHUP end the processes that a test starts, also under nohup, where all children would
    inherit that it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
