"""Runners: kept by what they are made from, built once, and a missing tool is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang.srt.inferlet.host import runner_build
from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT
from sglang.srt.inferlet.host.runner_build import Recipe, ToolchainMissing, prebuilt, runner


@pytest.fixture(autouse=True)
def no_wasmtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def precompile(source: Path, target: Path, seconds: int, most: int) -> None:
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(runner_build, "precompile", precompile)
    monkeypatch.setattr(runner_build, "_installed", lambda package: "1")


def test_a_runner_is_built_once_for_each_tool_and_source(tmp_path: Path) -> None:
    built: list[str] = []

    def recipe(tool: str, source: bytes) -> Recipe:
        def make(scratch: Path) -> Path:
            built.append(tool)
            made = scratch / "made"
            made.write_bytes(tool.encode() + source)
            return made

        return Recipe(lambda: tool, lambda: {"a": source}, make)

    recipes = recipe("one", b"a"), recipe("two", b"a"), recipe("one", b"b")
    assert [prebuilt(tmp_path, one) for one in recipes] == [None] * 3
    paths = [runner(tmp_path, one) for one in recipes * 2]
    assert built == ["one", "two", "one"]
    assert paths[:3] == paths[3:] == [prebuilt(tmp_path, one) for one in recipes]
    assert [path.read_bytes() for path in paths[:3]] == [b"onea", b"twoa", b"oneb"]


def test_missing_npm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match=r"npm is not on the path; install it by: .*nodejs"):
        runner(tmp_path / "cache", JAVASCRIPT)
    tool = tmp_path / "npm"
    tool.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    tool.chmod(0o755)
    with pytest.raises(RuntimeError, match="npm has failed: no network"):
        runner(tmp_path / "cache", JAVASCRIPT)
    tool.write_text("#!/bin/sh\n")
    with pytest.raises(ToolchainMissing, match="node is not on the path"):
        runner(tmp_path / "cache", JAVASCRIPT)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]
