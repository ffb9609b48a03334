"""The Triton kernels on the CPU, by Triton's interpreter, against float64.

The interpreter is chosen before triton is imported and changes it for good, so it has a process of
its own. It says nothing about bfloat16 (its arithmetic is wrong there) or about races.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from helpers.paths import TESTS

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

pytestmark = pytest.mark.timeout(1800)  # all cases in one process, on a busy machine
# The helpers, and what this process was given: a checkout may run without an installation.
PATHS = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))

CASES = (
    "attention.decode", "attention.decode_options", "attention.decode_padding", "attention.float8",
    "attention.decode_bits", "attention.extend", "attention.extend_options",
    "attention.extend_tree", "attention.extend_bits", "attention.cascade", "attention.skewed",
    "attention.plans", "attention.errors",
    "layers.written", "layers.written_float8", "layers.rotated", "layers.rotated_float8",
    "layers.norms", "layers.gates",
    "layers.routes", "layers.groups", "layers.mixture", "layers.experts", "sampling.samples",
    "sampling.blocks", "sampling.uncut", "sampling.like_the_host",
    "sampling.greediest", "sampling.masks", "sampling.penalties",
    "sampling.errors",
    "scaled.values", "scaled.products", "scaled.refusals",
)  # fmt: skip
# Cases that depend on the dtype and together use every product and every store.
HALF = (
    "attention.decode_options", "attention.extend_options", "attention.cascade",
    "layers.written", "layers.rotated", "layers.norms", "layers.mixture", "scaled.products",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, str]]:
    """Failures: dtype -> case -> traceback."""
    env = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "helpers.triton_run", *CASES, "--half", *HALF],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, str]] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_float32(case: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert not outcomes["float32"][case], outcomes["float32"][case]


@pytest.mark.parametrize("case", HALF)
def test_float16(case: str, outcomes: dict[str, dict[str, str]]) -> None:
    assert not outcomes["float16"][case], outcomes["float16"][case]


def test_the_package_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, sgl_kernel.triton as t; m = t.missing();"
        "print(m or {'torch', 'triton'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
