"""The runner: a component with Python and the library of inferlets inside, whose program is text.

It is built once by componentize-py, and compiled once for each version of wasmtime. Both files are
kept under a digest of what they were made from. That of JavaScript is kept in the same way
(``javascript_build``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from sglang.srt.inferlet.host.compiling import precompile
from sglang.srt.system.import_root import IMPORT_ROOT

WIT = Path(__file__).parents[2] / "assets" / "inferlet" / "program.wit"
BUILD_SECONDS = 600
COMPILE_SECONDS, COMPILE_BYTES = 600, 8 << 30
INSTALL = "pip install wasmtime componentize-py"
# Modules that programs may import: nothing is read from files once the runner is built.
LIBRARY = (
    "abc", "array", "ast", "base64", "bisect", "collections", "collections.abc", "contextlib",
    "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions",
    "functools", "hashlib", "heapq", "html", "inspect", "io", "itertools", "json", "math",
    "operator", "random", "re", "statistics", "string", "struct", "textwrap", "time", "traceback",
    "types", "typing", "unicodedata", "urllib.parse", "logging", "pprint", "uuid", "queue",
    "html.parser", "xml.etree.ElementTree",
)  # fmt: skip

# Every guest begins with the memory that this leaves. Programs are played, so that no code runs for
# the first time in a guest, and the collector need not look at objects that are there already.
APP = """
import gc
import sys
import time

import wit_world
from sglang.inferlet.guest import Guest

GUEST = Guest(lambda calls: wit_world.wait(calls))


class WitWorld(wit_world.WitWorld):
    def start(self, source, arguments):
        return GUEST.start(source, arguments)

    def turn(self, answers):
        return GUEST.turn(answers)


kept = sys.stdout, sys.stderr, time.sleep
FACTS = '{"arguments":[],"instance_id":"","version":"","models":[""],"traits":{"":[]},'
FACTS += '"page_size":1,"vocab_size":1,"eos":[],"context_length":1}'
for _ in range(20):
    played = Guest()
    played.start("async def main(ctx):\\n    print(await ctx.receive())\\n", FACTS)
    played.turn('[{"id":1,"value":""}]')
sys.stdout, sys.stderr, time.sleep = kept
del played, sys.modules["program"]
gc.collect()
gc.freeze()
"""


class ToolchainMissing(Exception):
    """A tool that builds guests is not installed. The text says which, and how to get it."""


def cache_directory() -> Path:
    """The directory of runners: ``$SGLANG_INFERLET_CACHE``, else under the user's cache."""
    named = os.environ.get("SGLANG_INFERLET_CACHE")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(root) / "sglang" / "inferlets"


class Recipe(NamedTuple):
    """Tool and sources of a runner.

    Attributes:
        tool: name and version of what builds it. Raises ToolchainMissing.
        sources: the files that it is made from, by their path in it.
        make: builds the component in an empty directory; its file. Raises the errors of ``runner``.
    """

    tool: Callable[[], str]
    sources: Callable[[], dict[str, bytes]]
    make: Callable[[Path], Path]


def runner(directory: Path | None = None, recipe: Recipe | None = None) -> Path:
    """The precompiled runner, of Python without a recipe. Where there is none it is built, in half
    a minute of processor time.

    Raises ToolchainMissing, RuntimeError with the tool's message, OSError.
    """
    found = prebuilt(directory, recipe)
    return found if found is not None else build(directory, recipe)


def prebuilt(directory: Path | None = None, recipe: Recipe | None = None) -> Path | None:
    """The precompiled runner where it is in the cache. Raises ToolchainMissing."""
    component = _component_path(directory or cache_directory(), recipe or PYTHON)
    if not component.exists():
        return None
    path = _compiled_path(component)
    return path if path.exists() else None


def build(directory: Path | None = None, recipe: Recipe | None = None) -> Path:
    """Build and precompile a runner. Raises the errors of ``runner``."""
    directory, recipe = directory or cache_directory(), recipe or PYTHON
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    component = _component_path(directory, recipe)
    with (directory / "lock").open("w") as lock:  # one builds, others wait and find it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not component.exists():
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                recipe.make(Path(scratch)).rename(component)
        path = _compiled_path(component)
        if not path.exists():
            precompile(component, path, COMPILE_SECONDS, COMPILE_BYTES)
    return path


def sources() -> dict[str, bytes]:
    """The files that the runner is made from, by their path in it."""
    library = Path(IMPORT_ROOT) / "sglang" / "inferlet"
    files = {f"sglang/inferlet/{path.name}": path.read_bytes() for path in library.glob("*.py")}
    files["sglang/__init__.py"] = b""
    files["program.wit"] = WIT.read_bytes()
    imports = "".join(f"import {name}\n" for name in LIBRARY)
    files["runner_app.py"] = (imports + APP).encode()
    return files


def _installed(package: str) -> str:
    """The version of a package. Raises ToolchainMissing."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise ToolchainMissing(f"{package} is not installed; install it by: {INSTALL}") from None


def _component_path(directory: Path, recipe: Recipe) -> Path:
    digest = hashlib.sha256(recipe.tool().encode())
    for name, data in sorted(recipe.sources().items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return directory / f"runner-{digest.hexdigest()[:32]}.wasm"


def _compiled_path(component: Path) -> Path:
    digest = hashlib.sha256(component.read_bytes())
    digest.update(f"{_installed('wasmtime')} {platform.machine()} {sys.platform}".encode())
    return component.with_name(f"runner-{digest.hexdigest()[:32]}.cwasm")


def _componentize(scratch: Path) -> Path:
    """The component, made in an empty directory."""
    for name, data in sources().items():
        path = scratch / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    made = scratch / "runner.wasm"
    tool = Path(sys.executable).with_name("componentize-py")
    command = [str(tool) if tool.exists() else "componentize-py", "-q"]
    command += ["-d", str(scratch / "app" / "program.wit"), "-w", "program"]
    command += ["componentize", "-p", str(scratch / "app"), "-o", str(made), "runner_app"]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    run_tool("componentize-py", INSTALL, command, scratch, environment)
    return made


def run_tool(
    name: str, how: str, command: list[str], directory: Path, environment: dict[str, str]
) -> None:
    """Run a tool that ``how`` installs. Raises ToolchainMissing, RuntimeError with its message."""
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, timeout=BUILD_SECONDS, capture_output=True
        )
    except FileNotFoundError:
        raise ToolchainMissing(f"{name} is not on the path; install it by: {how}") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} has taken more than {BUILD_SECONDS} s") from None
    if done.returncode:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise RuntimeError(f"{name} has failed: {text[-2000:]}")


PYTHON = Recipe(lambda: _installed("componentize-py"), sources, _componentize)
