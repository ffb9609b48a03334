"""Wheels and the sdist: what they hold, and what an installation imports from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from helpers.paths import ROOT

setuptools = pytest.importorskip("setuptools", "77", reason="setuptools 77 builds the wheels")

HOOKS = {
    "wheel": "from setuptools import build_meta; print(build_meta.build_wheel({out!r}))",
    "sdist": "from setuptools import build_meta; print(build_meta.build_sdist({out!r}))",
}


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a distribution with the setuptools that is installed: no network and no compiler."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", HOOKS[kind].format(out=str(out))], cwd=source, timeout=200,
        env={**os.environ, "CC": "false", "CXX": "false"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def copy(source: Path, target: Path) -> Path:
    """Copy a project, so that the build writes nothing into the checkout and reads nothing of a
    build before."""
    unwanted = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", "*.so")
    target.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (source / name).exists():
            shutil.copy(source / name, target)
    for name in ("python", "csrc"):
        if (source / name).exists():
            shutil.copytree(source / name, target / name, symlinks=True, ignore=unwanted)
    return target


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(ROOT, tmp_path_factory.mktemp("project") / "sglang")


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", project, tmp_path_factory.mktemp("wheel"))


def files(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by path, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = Counter(archive.namelist())
        assert set(names.values()) == {1}, "a path is in the wheel twice"
        return {name: archive.read(name) for name in names if ".dist-info/" not in name}


def expected(python: Path) -> dict[str, bytes]:
    """The files that the packages below ``python`` have, by their path in an installation."""
    found = {}
    for top in ("sglang", "srt"):
        for path in (python / top).rglob("*"):
            if path.is_file() and not path.is_relative_to(python / "sglang" / "srt"):
                name = path.relative_to(python)
                name = name if top == "sglang" else "sglang" / name
                found[str(name)] = path.read_bytes()
    return found


def test_the_wheel_has_each_file_of_the_packages_once(project: Path, wheel: Path) -> None:
    built, wanted = files(wheel), expected(project / "python")
    assert sorted(wanted.keys() - built.keys()) == []
    assert sorted(built.keys() - wanted.keys()) == []
    assert built == wanted
    suffixes = {Path(name).suffix for name in built}
    assert suffixes >= {".py", ".typed", ".safetensors", ".json", ".jinja", ".html", ".js", ".css"}


def test_the_top_level_has_one_package(wheel: Path, tmp_path: Path) -> None:
    assert {name.split("/")[0] for name in files(wheel)} == {"sglang"}
    kernels = build("wheel", copy(ROOT / "sgl-kernel", tmp_path / "kernels"), tmp_path / "out")
    assert {name.split("/")[0] for name in files(kernels)} == {"sgl_kernel"}


def test_the_sdist_builds_the_same_wheel(project: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", project, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("sglang-*")
    again = build("wheel", source, tmp_path / "out")
    assert again.name == wheel.name
    assert sorted(files(again)) == sorted(files(wheel))
    assert files(again) == files(wheel)


IMPORTS = """
import importlib.util, json, sys
has_srt = importlib.util.find_spec("srt") is not None
import sglang, sglang.srt.core.request
tops = [name for name in sys.modules if name == "srt" or name.startswith("srt.")]
import srt
print(json.dumps([has_srt, tops, sglang.__file__, sglang.srt.core.request.__name__, srt.subtitles]))
"""


def test_an_installation_leaves_the_name_srt_to_others(wheel: Path, tmp_path: Path) -> None:
    """The environment is empty but for the wheel and msgspec, which the runtime's core imports."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    done = subprocess.run(
        [*install, "--no-index", "--quiet", str(wheel)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in packages.iterdir() if path.suffix != ".dist-info") == [
        "sglang"
    ]
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    code = IMPORTS.replace("import srt\n", "").replace("srt.subtitles", "None")
    assert run(python, code) == [
        False, [], str(packages / "sglang" / "__init__.py"), "sglang.srt.core.request", None,
    ]  # fmt: skip
    (packages / "srt.py").write_text("subtitles = True\n")
    assert run(python, IMPORTS)[-1] is True


def run(python: Path, code: str) -> list[object]:
    """The list that ``code`` prints in an environment of its own."""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return list(msgspec.json.decode(done.stdout))
