"""The bodies of test/gpu on a CPU: Triton's kernels in its interpreter, FlashInfer's stand-in.

In a process of its own, because the interpreter is chosen when Triton is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from helpers.paths import ROOT

SETTINGS = {"SGLANG_TEST_DEVICE": "cpu", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.timeout(1800)  # all of them in one process, on a busy machine
def test_every_body_passes_or_says_why_it_cannot_run() -> None:
    plain = ["-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plain, "-rs", "test/gpu"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, **SETTINGS}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 8
    assert "needs a CUDA device" in done.stdout
