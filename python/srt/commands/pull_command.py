"""``sglang pull MODEL``: fetch a model of the hub into the local cache, and show what is there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import CacheNotFound
from sglang.srt.core.nearest import nearest
from sglang.srt.files.location import (
    EMBEDDED,
    HUB_FILE,
    HUB_ID,
    MODEL_FILES,
    TOKENIZER_FILES,
    NotFetchedError,
    locate,
)

UNITS = ("B", "KB", "MB", "GB", "TB")


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="",
        help="hub id (owner/name), or owner/name/file.gguf for one file of it",
    )  # fmt: skip
    parser.add_argument("--revision", default="", help="a branch, tag or commit")
    parser.add_argument(
        "--list", action="store_true", help="list the models of the cache, with their sizes"
    )
    parser.add_argument("--json", action="store_true", help="with --list: print JSON")
    parser.epilog = (
        "The cache is the hub's own: HF_HOME or HF_HUB_CACHE moves it, HF_TOKEN opens models that "
        "need a key, HF_ENDPOINT names a mirror. An interrupted pull goes on where it stopped."
    )


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the model cannot be had."""
    if arguments.list == bool(arguments.model):
        parser.error("give MODEL to fetch it, or --list to see what is there")
    if arguments.list:
        return _list(arguments.json)
    try:
        path = fetch(arguments.model, arguments.revision)
    except ValueError as error:
        print(f"sglang pull: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.model} is at {path} ({size_of(path)}); serve it with: sglang serve "
          f"{arguments.model}")  # fmt: skip
    return 0


def fetch(model: str, revision: str) -> Path:
    """The model's files here, fetched where they are missing; progress goes to standard error.
    Raises ValueError, saying what to do."""
    if not HUB_ID.fullmatch(model) and not HUB_FILE.fullmatch(model):
        if model == EMBEDDED.name or Path(model).expanduser().exists():
            raise ValueError(f"{model} is on this machine; nothing is to be fetched")
        near = nearest(model, [name for name, _ in cached()])
        hint = f"did you mean {near}?" if near else "a hub id is owner/name"
        raise ValueError(f"{model!r} is no model of the hub; {hint}")
    try:
        return locate(model, revision, (*MODEL_FILES, *TOKENIZER_FILES))
    except NotFetchedError as error:
        near = nearest(model, [name for name, _ in cached()])
        raise ValueError(
            f"{model} could not be fetched from the hub ({error.reason}). Examine the name, the "
            "network and HF_TOKEN; HF_ENDPOINT names a mirror."
            + (f" In the cache is {near}." if near else "")
        ) from error


def cached() -> list[tuple[str, int]]:
    """Models of the local cache and their bytes, by name."""
    try:
        found = huggingface_hub.scan_cache_dir()
    except CacheNotFound:
        return []
    return sorted((r.repo_id, r.size_on_disk) for r in found.repos if r.repo_type == "model")


def _list(as_json: bool) -> int:
    found = cached()
    if as_json:
        print(json.dumps([{"model": name, "bytes": size} for name, size in found], indent=2))
        return 0
    for line in lines(found):
        print(line)
    return 0


def lines(found: Sequence[tuple[str, int]]) -> list[str]:
    """The models as lines, their sizes after them."""
    if not found:
        return ["the cache has no model; fetch one with: sglang pull OWNER/NAME"]
    wide = max(len(name) for name, _ in found)
    return [f"{name:<{wide}}  {readable(size):>9}" for name, size in found]


def size_of(path: Path) -> str:
    """The bytes of a file, or of a directory's files, in a readable unit."""
    files: Any = [path] if path.is_file() else (one for one in path.rglob("*") if one.is_file())
    return readable(sum(one.stat().st_size for one in files))


def readable(size: float) -> str:
    """A number of bytes in the unit in which it has one to three digits before the point."""
    for unit in UNITS:
        if size < 1000 or unit == UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
