"""Path of an offline call: the source files that one warm ``gen`` of two tokens enters, and the
packages that ``sgl.Engine`` loads."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from helpers.paths import PYTHON

pytest.importorskip("torch")

HTTP = ("sglang/srt/server/", "sglang/srt/web/")
HTTP_PACKAGES = ["starlette", "uvicorn", "fastapi", "prometheus_client"]

# Files today, which may only fall.
MOST = 96

# Each thread notes the files of the project whose functions it enters while `noted` is a set.
SCRIPT = """
import json, sys, threading

python, packages = sys.argv[1], sys.argv[2:]
noted = None

def note(frame, event, argument):
    into = noted
    if event == "call" and into is not None and frame.f_code.co_filename.startswith(python):
        into.add(frame.f_code.co_filename[len(python) + 1:])

threading.setprofile(note)
sys.setprofile(note)
import sglang as sgl

@sgl.function
def program(s):
    s += "The sky is" + sgl.gen("text", max_tokens=2, temperature=0)

runs = []
with sgl.Engine(log_level="warning") as engine:
    for _ in range(6):
        noted = set()
        assert program.run(backend=engine)["text"]
        found, noted = noted, None
        runs.append(found)
    loaded = [name for name in packages if name in sys.modules]
warm = runs[2:]
print(json.dumps([sorted(min(warm, key=len)), sorted(set().union(*warm)), loaded]))
"""


@dataclass(frozen=True)
class Offline:
    """Files that a call entered, in the shortest of several runs and in all, and packages of HTTP
    that were loaded."""

    fewest: list[str]
    files: list[str]
    loaded: list[str]


@pytest.fixture(scope="module")
def offline() -> Offline:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(PYTHON), *HTTP_PACKAGES],
        env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Offline(*json.loads(done.stdout.splitlines()[-1]))


def test_offline_gen_enters_few_files(offline: Offline) -> None:
    assert "sglang/srt/engine/planner.py" in offline.files
    assert len(offline.fewest) <= MOST, offline.fewest


def test_offline_gen_enters_no_file_of_http(offline: Offline) -> None:
    assert [name for name in offline.files if name.startswith(HTTP)] == []


def test_offline_engine_loads_no_package_of_http(offline: Offline) -> None:
    assert offline.loaded == []
