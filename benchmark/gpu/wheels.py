"""Wheels: packages to carry to a GPU machine that has torch and no network.

The list follows from pyproject.toml: the requirements of the runtime, of the GPU backends and of
what runs test/gpu, for Python 3.12 on Linux, with all that those require in turn, less what an
image with torch 2.11 has. Versions are those installed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHON, TORCH = "3.12", "2.11"
# Markers are judged for this machine.
TARGET = {
    "python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
    "implementation_name": "cpython", "platform_python_implementation": "CPython",
    "implementation_version": f"{PYTHON}.0", "platform_release": "", "platform_version": "",
}  # fmt: skip
# Wheels that run with glibc 2.34 and later (pip takes those of the platforms it is given).
PLATFORMS = (
    "manylinux_2_34_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64", "manylinux2014_x86_64",
)  # fmt: skip
EXTRAS = ("cpu", "vision", "srt", "gpu", "flashinfer", "bench")
# Packages of the extra "dev" that test/gpu needs.
TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "pytest-asyncio")
# There with torch: itself, its compiler, and what its wheel requires.
PRESENT = frozenset(
    ("torch", "triton", "numpy", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx",
     "setuptools", "sympy", "typing-extensions")
)  # fmt: skip
# FlashInfer 0.6.8.post1 is not installed where the list is made, so its needs stand here. It also
# names cuda-tile, nvidia-cudnn-frontend and nvidia-cutlass-dsl, without which it imports and
# compiles the attention kernels.
FLASHINFER = (
    "apache-tvm-ffi==0.1.9", "click", "einops", "ninja", "nvidia-ml-py", "packaging", "requests",
    "tabulate", "tqdm",
)  # fmt: skip


def declared() -> dict[str, list[Requirement]]:
    """Requirements of the project, "" for its own, and of each extra."""
    project = _pyproject()["project"]
    found = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(text) for text in texts] for name, texts in found.items()}


def wheels() -> list[str]:
    """Requirements in alphabetic order, each with a version where one is known."""
    extras = declared()
    wanted = [r for name in ("", *EXTRAS) for r in extras[name]]
    wanted += [r for r in extras["dev"] if r.name in TESTS]
    found: dict[str, str] = {}
    _follow(wanted, found)
    _follow([Requirement(text) for text in FLASHINFER], found)
    return sorted(found.values())


def page() -> str:
    """The list as a requirements file, with the commands that carry it."""
    pip = "--only-binary=:all: --no-deps"
    platforms = " ".join(f"--platform {name}" for name in PLATFORMS)
    return "\n".join(
        [
            f"# For Python {PYTHON} and torch {TORCH} on Linux x86_64, which bring the rest:",
            "#   python -m benchmark.gpu --wheels > wheels.txt",
            f"#   pip download {pip} --python-version {PYTHON} {platforms} \\",
            "#     --dest wheels -r wheels.txt",
            "# and on the machine, in the project's folder:",
            "#   pip install --no-index --no-deps --find-links wheels -r wheels.txt",
            "#   export PYTHONPATH=$PWD/python:$PWD/sgl-kernel/python:$PWD/test",
            *wheels(),
        ]
    )


def _follow(requirements: Iterable[Requirement], found: dict[str, str], extra: str = "") -> None:
    """Add requirements to ``found``, by name, and in turn those of each one that is installed
    here."""
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        applies = marker is None or marker.evaluate({**TARGET, "extra": extra})
        if not applies or name in PRESENT or name in found or name == "sglang":
            continue
        pinned = str(requirement.specifier)
        try:
            known = distribution(name)
        except PackageNotFoundError:
            found[name] = f"{name}{pinned}"
            continue
        found[name] = f"{name}{pinned}" if pinned.startswith("==") else f"{name}=={known.version}"
        needs = [Requirement(text) for text in known.requires or ()]
        _follow(needs, found)
        for chosen in requirement.extras:
            _follow(needs, found, chosen)


def _pyproject() -> dict[str, Any]:
    import tomllib  # Python 3.11; imported here, so that the rest runs on 3.10

    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found
