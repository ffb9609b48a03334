"""Core modules in C, Rust and AssemblyScript: each gives what the Python example of its name gives,
on the same server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")
pytest.importorskip("componentize_py", reason="the extra [inferlet] is not installed")

from helpers.launched import best_model, launched
from helpers.paths import ROOT
from sglang.backend.engine.inferlets import InferletError
from sglang.backend.engine.module_build import BuildFailed, build_module
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
SUFFIXES = {"c": ".c", "rust": ".rs", "assemblyscript": ".ts"}
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


@pytest.fixture(scope="module")
def expected(client: sgl.InferletClient) -> Callable[[str, list[str]], Any]:
    """The result of an example in Python, computed once."""
    found: dict[str, Any] = {}

    def of(name: str, arguments: list[str]) -> Any:
        key = repr((name, arguments))
        if key not in found:
            found[key] = result(client, EXAMPLES / f"{name}.py", arguments)
        return found[key]

    return of


@pytest.mark.parametrize("language", SUFFIXES)
@pytest.mark.parametrize(("name", "arguments"), RUNS)
def test_the_built_modules(
    client: sgl.InferletClient, expected: Any, language: str, name: str, arguments: list[str]
) -> None:
    found = result(client, EXAMPLES / language / f"{name}.wasm", arguments)
    same(found, expected(name, arguments))


@pytest.mark.parametrize("language", SUFFIXES)
@pytest.mark.parametrize("name", ["text_completion", "beam_search", "agent_react"])
def test_they_can_be_built_anew(
    client: sgl.InferletClient, expected: Any, tmp_path: Path, language: str, name: str
) -> None:
    built, arguments = tmp_path / "built.wasm", next(args for one, args in RUNS if one == name)
    try:
        build_module(EXAMPLES / language / f"{name}{SUFFIXES[language]}", built)
    except BuildFailed as error:
        if "get it by" not in str(error):
            raise
        pytest.skip(str(error))
    same(result(client, built, arguments), expected(name, arguments))


def test_a_refused_call_ends_a_program_with_its_reason(client: sgl.InferletClient) -> None:
    arguments = ["Hello", "100000000"]
    with pytest.raises(InferletError):
        result(client, EXAMPLES / "c" / "text_completion.wasm", arguments)


@pytest.mark.parametrize(
    ("language", "place"), [("rust", "agent_react.rs:"), ("assemblyscript", "agent_react.ts:")]
)
def test_an_error_names_its_line(client: sgl.InferletClient, language: str, place: str) -> None:
    with pytest.raises(InferletError, match="4 arguments: URL, question, turns, tokens") as told:
        result(client, EXAMPLES / language / "agent_react.wasm", ["one"])
    assert place in str(told.value)
