"""Examples of the documentation's pages run on the embedded model and print what the page shows.

A page's blocks run in order, in one folder and one namespace. What they are:

    ```python                       runs; a ```text block right below is what it prints
    ```python title="tools.py"      is written to that file
    <!-- needs NAME -->             leaves the block below out where that package is not installed
    ```console                      lines behind "$ " are run by bash, the others are printed

``...`` in what is shown stands for any text. An address at port 30000 is the running server's, and
``Engine()`` without settings is that server's engine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import sglang as sgl
from helpers.launched import READY, launched
from helpers.paths import ROOT
from sglang.srt.config import add_arguments, from_arguments

pytest.importorskip("torch")
DOCS = ROOT / "docs"
ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1):30000")
BLOCK = re.compile(
    r"(?:^<!-- needs (?P<needs>\w+) -->\n)?"
    r"^```(?P<kind>python|console)(?: title=\"(?P<file>[\w.]+)\")?\n(?P<code>.*?)^```$"
    r"(?:\n\n```text\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
# Pages whose examples other tests run.
ELSEWHERE = {
    "adding-a-model.md": "test/cpu/srt/models/test_adding.py",
    "coming-from.md": "test/pure/project/test_docs_examples.py",
    "dspy.md": "test/e2e/clients/test_dspy_pipeline.py",
    "essay-judge.md": "test/e2e/test_essay_judge.py",
    "http.md": "test/e2e/test_readme.py",
    "language.md": "test/pure/project/test_docs_examples.py",
}
# Pages without an example, and the reason.
NOTHING_TO_RUN = {
    "README.md": "an index of the other pages",
    "benchmarks.md": "tables of benchmark.peers, which needs other engines (make bench-peers)",
    "evaluation.md": "tables of benchmark.paper, an hour; test_paper_smoke runs all its parts",
    "perf-log.md": "a table of measurements that were made once, each on a version of that day",
    "gguf.md": "the project has no GGUF file; test/cpu/srt/models/gguf writes and reads some",
}
PAGES = sorted(
    page.name
    for page in DOCS.glob("*.md")
    if page.name not in ELSEWHERE and BLOCK.search(page.read_text(encoding="utf-8"))
)


class Place(NamedTuple):
    """The folder in which a page's examples run, and the server's address."""

    folder: Path
    address: str

    def local(self, text: str) -> str:
        return ADDRESS.sub(self.address, text)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host and port of a server: the embedded model, the toolbox of its page, batches, and
    inferlets where their extra is installed."""
    tools = tmp_path_factory.mktemp("tools") / "mytools.py"
    example = BLOCK.search((DOCS / "toolbox.md").read_text(encoding="utf-8"))
    assert example is not None
    tools.write_text(example["code"], encoding="utf-8")
    batches = tmp_path_factory.mktemp("batches")
    flags = ["--device", "cpu", "--toolbox", str(tools), "--batch-dir", str(batches)]
    if find_spec("componentize_py"):
        flags.append("--enable-inferlets")
    with launched(["--log-level", "warning", *flags]) as server:
        yield server.url.removeprefix("http://")


@pytest.fixture(scope="module")
def engines(address: str) -> Iterator[Callable[..., Any]]:
    """Makes engines: one for all pages that give the same settings, the server's without any."""
    started: dict[str, Any] = {}
    make = sgl.Engine

    def engine(**settings: Any) -> Any:
        key = json.dumps(settings, sort_keys=True)
        if key not in started:
            options = {"log_level": "warning", "device": "cpu", **settings}
            server = sgl.RuntimeEndpoint(f"http://{address}")
            started[key] = make(**options) if settings else server
        return started[key]

    yield engine
    for one in started.values():
        if not isinstance(one, sgl.RuntimeEndpoint):
            one.shutdown()


@pytest.fixture
def place(
    address: str, engines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sgl, "Engine", engines)
    yield Place(tmp_path, address)
    sgl.set_default_backend(None)


def same(printed: str, shown: str) -> bool:
    """Whether the words printed are those shown; ``...`` is any text."""
    words = [re.escape(part) for part in " ".join(shown.split()).split("...")]
    return re.fullmatch(".*".join(words), " ".join(printed.split()), re.DOTALL) is not None


def commands(code: str) -> Iterator[tuple[str, str]]:
    """Each command with what is shown below it. Lines that begin with spaces continue a command
    that ends in a backslash or has an open quotation mark."""
    command, shown = "", ""
    for line in code.splitlines(keepends=True):
        open_ = command.endswith("\\\n") or command.count("'") % 2
        if line.startswith("$ ") and not open_:
            if command:
                yield command, shown
            command, shown = line.removeprefix("$ "), ""
        elif open_:
            command += line
        else:
            shown += line
    yield command, shown


def serve(command: str, shown: str) -> None:
    """A server is running already: its flags are read, and its first line has the known form."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    from_arguments(parser.parse_args(command.split()[2:]))
    assert not shown or READY.fullmatch(shown.replace("...", "1"))


def run_commands(place: Place, code: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}"}
    for command, shown in commands(code):
        if command.startswith("sglang serve"):
            serve(command, shown)
            continue
        script = place.local(command.replace("sglang ", "python -m sglang.srt.cli "))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True, text=True, timeout=120, cwd=place.folder, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert same(done.stdout, shown or "..."), (command, done.stdout)


def run_program(place: Place, code: str, shown: str, namespace: dict[str, object]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(place.local(code), "program.py", "exec"), namespace)
    assert same(printed.getvalue(), shown), printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_is_shown(
    page: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ModuleType("program")  # dataclasses look their module up by its name
    monkeypatch.setitem(sys.modules, "program", program)
    text = (DOCS / page).read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        where = f"docs/{page}:{text[: match.start()].count(chr(10)) + 1}"
        if match["needs"] and not find_spec(match["needs"]):
            continue
        try:
            if match["file"]:
                (place.folder / match["file"]).write_text(match["code"], encoding="utf-8")
            elif match["kind"] == "console":
                run_commands(place, match["code"])
            else:
                run_program(place, match["code"], match["shown"] or "", vars(program))
        except Exception as error:
            raise AssertionError(f"{where}: {error!r}") from error


def test_every_page_has_an_example() -> None:
    pages = {page.name for page in DOCS.glob("*.md")}
    assert pages == {*PAGES, *ELSEWHERE, *NOTHING_TO_RUN}
    assert not NOTHING_TO_RUN.keys() & {*PAGES, *ELSEWHERE}
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
