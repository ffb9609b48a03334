"""Wheels and the sdist: what they hold, and what an installation imports from them."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from helpers.paths import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

setuptools = pytest.importorskip("setuptools", "77", reason="setuptools 77 builds the wheels")

HOOKS = {
    "wheel": "from setuptools import build_meta; print(build_meta.build_wheel({out!r}))",
    "sdist": "from setuptools import build_meta; print(build_meta.build_sdist({out!r}))",
}


def build(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """Build a distribution with the setuptools that is installed: no network and no compiler."""
    out.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", HOOKS[kind].format(out=str(out))], cwd=source, timeout=200,
        capture_output=True, text=True,
        env={**os.environ, "CC": "false", "CXX": "false", **variables},
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


# The language alone: SGLANG_LANGUAGE_ALONE=1.

SOURCE = "https://example.org/o/r/blob/v1"
MOST_DISTRIBUTIONS, MOST_BYTES = 12, 20_000_000


@pytest.fixture(scope="module")
def alone(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = copy(project, tmp_path_factory.mktemp("alone") / "sglang")
    variables = {"SGLANG_LANGUAGE_ALONE": "1", "SGLANG_SOURCE_URL": SOURCE}
    return build("wheel", copied, copied.parent / "out", **variables)


def needed(names: set[str]) -> set[str]:
    """Distributions that these need, themselves included, as this environment has them."""
    found: set[str] = set()
    while names - found:
        found |= names
        for name in names.copy():
            for text in metadata.requires(name) or ():
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    names.add(canonicalize_name(requirement.name))
    return found


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_language_alone_is_small(alone: Path, tmp_path: Path) -> None:
    """Installed and compiled, with all that it needs, it stays within 20 MB."""
    with zipfile.ZipFile(alone) as archive:
        archive.extractall(tmp_path / "all")
        (about,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(about).decode()
    wanted = [
        line.partition(": ")[2] for line in text.splitlines() if line[:14] == "Requires-Dist:"
    ]
    own: set[str] = {
        canonicalize_name(Requirement(one).name)
        for one in wanted
        if Requirement(one).marker is None
    }
    others = needed(own)
    assert len(others) + 1 <= MOST_DISTRIBUTIONS, sorted(others)
    for name in others:  # copied, so that each has exactly one compiled file for a source
        for file in metadata.files(name) or ():
            source = Path(str(file.locate()))
            if source.is_file() and source.suffix != ".pyc" and ".." not in file.parts:
                target = tmp_path / "all" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    assert compileall.compile_dir(tmp_path / "all", quiet=2, workers=1)
    assert 5_000_000 < size(tmp_path / "all") <= MOST_BYTES


def test_the_language_alone_has_its_commands(alone: Path, tmp_path: Path) -> None:
    """Nothing of the runtime is installed; what needs it says so."""
    with zipfile.ZipFile(alone) as archive:
        archive.extractall(tmp_path)
    places = [str(tmp_path)]
    for name in ("h11", "pydantic", "jsonschema"):
        places += [str(Path(str(metadata.distribution(name).locate_file(""))))]
    code = f"import sys; sys.path[:0] = {places!r}; sys.modules.update(dict.fromkeys(['msgspec', " \
        "'numpy', 'torch', 'zmq', 'psutil', 'huggingface_hub'])); " \
        "from sglang.srt.cli import main; sys.exit(main(sys.argv[1:]))"  # fmt: skip
    for words, code_wanted, message in (
        (["chat", "--help"], 0, "usage: sglang chat"),
        (["chat", "./model"], 1, "give --url of a server"),
        (["run", "--help"], 0, "usage: sglang run"),
        (["bench", "serving", "--help"], 0, "usage: sglang bench serving"),
        (["serve"], 1, "sglang serve needs more"),
        (["ps"], 1, "sglang ps needs more"),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, *words], capture_output=True, text=True,
            timeout=100, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code_wanted, done.stderr
        assert message in done.stdout + done.stderr


def test_the_metadata_names_authors_and_home(alone: Path) -> None:
    with zipfile.ZipFile(alone) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(about).decode()
    assert "\nAuthor: The sglang authors\n" in text
    assert "\nProject-URL: Source, https://example.org/o/r\n" in text
    assert f"({SOURCE}/docs/README.md)" in text


def run(python: Path, code: str) -> list[object]:
    """The list that ``code`` prints in an environment of its own."""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return list(msgspec.json.decode(done.stdout))
