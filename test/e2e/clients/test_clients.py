"""Clients of others, each in an environment of its own, against one server on the embedded model.

``make test-clients`` installs them, and runs this with the network cut where it may be
(``offline.py``).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.launched import PYTHON, launched

pytest.importorskip("torch")

from environments import FOLDER, ROOT, python_of
from sglang.srt.tokenizer.tokenizer import EMBEDDED

HERE = Path(__file__).resolve().parent
KEY = "sk-of-the-tests"
SECONDS = 240
CASES = [  # environment, file
    ("openai-1", "openai_cases.py"),
    ("openai-2", "openai_cases.py"),
    ("openai-3", "openai_cases.py"),
    ("anthropic", "anthropic_cases.py"),
    ("ollama", "ollama_cases.py"),
    ("dspy", "litellm_cases.py"),
    ("instructor", "instructor_cases.py"),
    ("langchain", "langchain_cases.py"),
    ("outlines", "outlines_cases.py"),
    ("lm-eval", "lm_eval_cases.py"),
]
pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the answers are the embedded model's"
)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """One that wants a key and one that knows none, as environment variables."""
    flags = ["--device", "cpu", "--max-total-tokens", "32768"]
    with launched([*flags, "--api-key", KEY]) as closed, launched(flags) as opened:
        yield {
            "SGLANG_URL": closed.url,
            "SGLANG_KEY": KEY,
            "SGLANG_OPEN_URL": opened.url,
            "SGLANG_TOKENIZER": str(EMBEDDED),
        }


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    """Run a command and return its output; assert that it succeeds. Caches go into ``folder``."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "OFFLINE") if name in os.environ}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS,
        env={**kept, "HOME": str(folder), "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.parametrize(("name", "file"), CASES)
def test_python(name: str, file: str, servers: dict[str, str], tmp_path: Path) -> None:
    cases = HERE / "cases"
    command: list[str | Path] = [python_of(name), "-m", "pytest", "-q", "-p", "no:cacheprovider",
                                 "-c", os.devnull, "--rootdir", cases, "--confcutdir", cases,
                                 "--tb", "short", cases / file]  # fmt: skip
    assert "passed" in run(command, tmp_path, **servers)


def test_node(servers: dict[str, str], tmp_path: Path) -> None:
    """The scripts are run beside their packages, where an ``import`` looks for them."""
    home, node = FOLDER / "node", shutil.which("node")
    if node is None or not (home / ".installed").exists():
        pytest.skip("the npm packages are not installed; make test-clients installs them")
    files = [shutil.copy(file, home) for file in sorted((HERE / "node").glob("*.mjs"))]
    assert "# fail 0" in run(
        [node, "--test", "--test-reporter", "tap", *files], tmp_path, **servers
    )


@pytest.mark.parametrize("major", [1, 2, 3])
def test_our_backend_on_openai(major: int, tmp_path: Path) -> None:
    """``sglang.OpenAI`` with each major release of the package, against a fake service."""
    command = [python_of(f"openai-{major}"), "-W", "error::ResourceWarning",
               HERE / "backend_check.py"]  # fmt: skip
    said = run(command, tmp_path, PYTHONPATH=f"{PYTHON}:{ROOT / 'test'}")
    assert said.startswith(f"ok {major}.")


def test_the_network_is_cut() -> None:
    """No client can have reached another host if the network is cut."""
    if "OFFLINE" not in os.environ:
        pytest.skip("the network is not cut here; make test-clients cuts it where it may")
    with pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("192.0.2.1", 80), timeout=5)
