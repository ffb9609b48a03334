"""Inferlets in C: each gives what the Python example of its name gives, on the same server."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")
pytest.importorskip("componentize_py", reason="the extra [inferlet] is not installed")

from helpers.launched import best_model, launched
from helpers.paths import ROOT
from sglang.backend.engine.inferlets import InferletError
from sglang.srt.cli import main as command
from sglang.srt.inferlet.host.runner_build import runner

EXAMPLES = ROOT / "examples" / "inferlets"
RUNS: list[tuple[str, list[str]]] = [
    ("text_completion", []),
    ("text_completion", ["Question: What is 17 + 25?\nAnswer:", "24"]),
    ("text_completion", ['a "quoted" \\ text\tof é, 中 and 🙂', "9"]),
    ("text_completion", ["Hello", "0"]),
    ("beam_search", []),
    ("beam_search", ["Question: What is 17 + 25?\nAnswer:", "4", "8"]),
    ("beam_search", ["List:", "1", "5"]),
    ("agent_react", ["http://api.example/legs", "How many legs has a dog?", "3", "24"]),
    ("agent_react", ["http://api.example/legs", "What is \"red\"?\nAct: a b/ü?\nSee:", "1", "2"]),
]  # fmt: skip
COMPILER = shutil.which("clang") or importlib.util.find_spec("ziglang")
pytestmark = pytest.mark.timeout(300)  # the runner of Python may have to be built


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sgl.InferletClient]:
    runner()
    flags = ["--enable-inferlets", "--max-total-tokens", "16384"]
    with launched([*flags, *best_model(tmp_path_factory.mktemp("model"))]) as server:
        yield sgl.InferletClient(server.url)


def result(client: sgl.InferletClient, program: Path, arguments: list[str]) -> Any:
    run = client.launch(client.put(program), *arguments)
    try:
        return client.result(run)
    finally:
        client.kill(run)


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):  # pairs of score and text
        assert [text for _, text in found] == [text for _, text in expected]
        assert [one for one, _ in found] == pytest.approx([one for one, _ in expected], abs=1e-6)
    else:
        assert found == expected


@pytest.mark.parametrize(("name", "arguments"), RUNS)
def test_the_built_modules(client: sgl.InferletClient, name: str, arguments: list[str]) -> None:
    expected = result(client, EXAMPLES / f"{name}.py", arguments)
    same(result(client, EXAMPLES / "c" / f"{name}.wasm", arguments), expected)


@pytest.mark.skipif(not COMPILER, reason="neither clang nor ziglang is installed")
@pytest.mark.parametrize("name", ["text_completion", "beam_search", "agent_react"])
def test_they_can_be_built_anew(client: sgl.InferletClient, tmp_path: Path, name: str) -> None:
    built, arguments = tmp_path / "built.wasm", next(args for one, args in RUNS if one == name)
    source = EXAMPLES / "c" / f"{name}.c"
    assert command(["inferlet", "build", str(source), "--output", str(built)]) == 0
    same(result(client, built, arguments), result(client, EXAMPLES / f"{name}.py", arguments))


def test_a_refused_call_ends_a_program_with_its_reason(client: sgl.InferletClient) -> None:
    arguments = ["Hello", "100000000"]
    with pytest.raises(InferletError):
        result(client, EXAMPLES / "c" / "text_completion.wasm", arguments)
