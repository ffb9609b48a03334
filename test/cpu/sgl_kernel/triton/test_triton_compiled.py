"""The Triton kernels compiled for sm_90, without a GPU: registers, spills and instructions.

What a kernel uses decides how fast it can be, and a spill or a product that misses the tensor cores
shows nowhere else before a GPU is rented.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from helpers.paths import TESTS
from helpers.seeds import LONG

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

pytestmark = pytest.mark.timeout(1800)  # all cases in one process, on a busy machine
# The helpers, and what this process was given: a checkout may run without an installation.
PATHS = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))

CASES: tuple[str, ...] = (
    "decode 128", "extend 128", "extend 128 tree", "cascade", "float8", "append", "rotate", "norm",
    "gate", "route", "mixture few", "mixture many", "sample", "draw greedy", "draw plain",
    "draw cut", "draw all", "scaled blocks many",
)  # fmt: skip
# Kernels of those above with other sizes or options: make test-long, make test-gpu-versions.
if LONG:
    CASES += (
        "decode 64", "decode 80", "decode 128 pages", "decode 256", "extend 64", "extend 96",
        "extend 128 fixed", "extend 128 options", "extend 256", "mask", "penalties", "rotate part",
        "norms", "scaled blocks few", "scaled rows",
    )  # fmt: skip
# Shared memory of a multiprocessor, and the most that a program may have.
SHARED = 227 << 10


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> dict[str, list[dict[str, Any]]]:
    """Reports of compiled kernels. Compiled code is kept from run to run, by a hash of its
    source."""
    assert request.config.cache is not None
    cache = request.config.cache.mkdir("triton")
    env = os.environ | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": PATHS}
    run = subprocess.run(
        [sys.executable, "-m", "helpers.triton_sm90", *CASES],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_spilled(case: str, reports: dict[str, list[dict[str, Any]]]) -> None:
    for kernel in reports[case]:
        assert kernel["reg"] > 0
        assert (kernel["stack"], kernel["local"], kernel["spills"]) == (0, 0, 0), kernel
        assert kernel["shared"] <= SHARED, kernel


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("scaled")])
def test_float8_products_use_tensor_cores(
    case: str, reports: dict[str, list[dict[str, Any]]]
) -> None:
    product = next(kernel for kernel in reports[case] if kernel["kernel"] == "product")
    assert product["wgmma"] + product["mma"] + product["float8_mma"] > 0, product


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("extend")])
def test_extend_uses_the_tensor_cores_of_hopper(
    case: str, reports: dict[str, list[dict[str, Any]]]
) -> None:
    (kernel,) = reports[case]
    assert kernel["wgmma"], kernel
    assert not kernel["mma"], kernel


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("decode")])
def test_decode_uses_tensor_cores_and_wide_copies(
    case: str, reports: dict[str, list[dict[str, Any]]]
) -> None:
    """Keys and values come in 16 bytes a thread, past the registers and ahead of their use."""
    kernel = reports[case][0]
    assert kernel["mma"], kernel
    assert kernel["wide_copies"] >= 32, kernel
    # Three programs a multiprocessor: while one computes or waits, the others load.
    assert kernel["shared"] <= SHARED // 3, kernel
    assert kernel["reg"] <= 65536 // (3 * 128), kernel


def test_products_of_experts_use_tensor_cores(reports: dict[str, list[dict[str, Any]]]) -> None:
    few = [k for k in reports["mixture few"] if k["kernel"] == "product"]
    many = [k for k in reports["mixture many"] if k["kernel"] == "product"]
    assert len(few) == len(many) == 2
    assert all(k["mma"] for k in few)
    assert all(k["wgmma"] for k in many)


def test_a_step_is_sampled_in_few_launches(reports: dict[str, list[dict[str, Any]]]) -> None:
    cut = ["peaks", "weigh", "gather", "choose"]
    launched = {case: [kernel["kernel"] for kernel in found] for case, found in reports.items()}
    assert launched["draw greedy"] == ["peaks", "greedy"]
    assert launched["draw plain"] == ["peaks", "weigh", "choose"]
    assert launched["draw cut"] == cut
    # The last two tell logits that the model broke from rows that allow nothing.
    assert launched["draw all"] == ["penalise", "apply_mask", *cut, "peaks", "greedy"]


def test_a_row_of_logits_is_cut_into_programs(reports: dict[str, list[dict[str, Any]]]) -> None:
    """128,256 logits in blocks of 4,096; one program a row sees the candidates alone."""
    grids = {kernel["kernel"]: tuple(kernel["grid"]) for kernel in reports["sample"]}
    assert grids == {"peaks": (4, 32), "weigh": (4, 32), "gather": (4, 32), "choose": (4,)}
