"""sglang pull: what is fetched, what is said where nothing can be, and the list of the cache."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from sglang.srt.cli import main
from sglang.srt.commands import pull_command
from sglang.srt.commands.pull_command import lines, readable, size_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one model, in the hub's own layout."""
    home = tmp_path / "models--acme--tiny"
    (home / "blobs").mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "blobs" / "b").write_bytes(b"x" * 1500)
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(home / "blobs" / "b")
    (home / "refs" / "main").write_text("abc")
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path))
    return tmp_path


def test_list_shows_models_and_sizes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["acme/tiny", "1.5", "KB"]
    assert main(["pull", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"model": "acme/tiny", "bytes": 1500}]


def test_list_of_an_empty_cache() -> None:
    assert lines([]) == ["the cache has no model; fetch one with: sglang pull OWNER/NAME"]


def test_pull_asks_for_weights_and_tokenizer(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def locate(path: str, revision: str, patterns: tuple[str, ...]) -> Path:
        asked.append((path, revision, patterns))
        return cache

    monkeypatch.setattr(pull_command, "locate", locate)
    assert main(["pull", "acme/tiny", "--revision", "v1"]) == 0
    ((path, revision, patterns),) = asked
    assert (path, revision) == ("acme/tiny", "v1")
    assert {"*.safetensors", "*.json", "tokenizer*"} <= set(patterns)
    assert "serve it with: sglang serve acme/tiny" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny"], "a hub id is owner/name"),
        (["sglang-tiny"], "is on this machine"),
        (["/tmp"], "is on this machine"),
    ],
)
def test_pull_refuses_what_is_no_hub_id(
    words: list[str], message: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", *words]) == 1
    assert message in capsys.readouterr().err


def test_pull_without_a_network_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert main(["pull", "acme/tinny"]) == 1
    told = capsys.readouterr().err
    assert "sglang pull: acme/tinny could not be fetched from the hub" in told
    assert "HF_ENDPOINT names a mirror. In the cache is acme/tiny." in told
    assert "embedded" not in told  # advice for a server
    assert "Traceback" not in told


@pytest.mark.parametrize("words", [[], ["a/b", "--list"]])
def test_pull_needs_a_model_or_list(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pull", *words])


def test_sizes_are_readable(tmp_path: Path) -> None:
    assert [readable(n) for n in (0, 999, 1000, 1.5e9, 2e15)] == [
        "0 B", "999 B", "1.0 KB", "1.5 GB", "2000.0 TB",
    ]  # fmt: skip
    (tmp_path / "a").write_bytes(b"xx")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b").write_bytes(b"x")
    assert (size_of(tmp_path), size_of(tmp_path / "a")) == ("3 B", "2 B")
