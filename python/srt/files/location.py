"""Location: from what a user calls a model to files here; no name found in a file leaves its
directory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

EMBEDDED = Path(__file__).parents[1] / "assets" / "sglang-tiny"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+)/((?:[\w.-]+/)*[\w.-]+\.gguf)")
MODEL_FILES = ("*.json", "*.safetensors")
TOKENIZER_FILES = (
    "tokenizer*", "*.tiktoken", "*.jinja", "chat_template.json", "generation_config.json",
    "config.json", "special_tokens_map*", "added_tokens.json",
)  # fmt: skip


class NotFetchedError(ValueError):
    """The hub's model ``name`` could not be fetched.

    Attributes:
        reason: kind and text of the error.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"model path {name!r} is no directory here, and it could not be fetched from "
            f"the hub ({reason}). Without a network, "
            f"give a local directory, or omit the path to use the embedded model."
        )
        self.reason = reason


def locate(path: str, revision: str = "", patterns: Sequence[str] = MODEL_FILES) -> Path:
    """A directory with ``config.json``, or a GGUF file: a local one, the embedded model's for "" or
    its name, or a hub repository's (``owner/name``, ``owner/name/file.gguf``), of which the files
    that ``patterns`` name are downloaded if needed.

    Raises ValueError, with the way out, where there is none.
    """
    local = Path(path).expanduser()
    if not path or (path == EMBEDDED.name and not local.exists()):
        if not (EMBEDDED / "config.json").is_file():
            raise ValueError(f"the embedded model is missing from {EMBEDDED}; give a model path.")
        return EMBEDDED
    if local.is_dir() or (local.is_file() and is_gguf(local)):
        return local
    if local.exists():
        raise ValueError(
            f"model path {path} is a file, and no GGUF one; give the directory it is in."
        )
    if inside_hub := HUB_FILE.fullmatch(path):
        shards = re.sub(r"-\d{5}-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", inside_hub[2])
        return inside(_fetch(inside_hub[1], revision, [shards]), inside_hub[2])
    if not HUB_ID.fullmatch(path):
        raise ValueError(f"model path {path!r} is no directory here and no hub id (owner/name).")
    return _fetch(path, revision, patterns)


def _fetch(name: str, revision: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        told = (str(error).splitlines() or [""])[0]
        raise NotFetchedError(name, f"{type(error).__name__}: {told}") from error
    return Path(found)


def is_gguf(path: Path) -> bool:
    """Whether the file begins as GGUF files do, or is called one."""
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a model path means: itself, or the one of a directory that has no
    safetensors. Of a model in several files the first. None where it means none; raises ValueError
    where a directory has several models."""
    if not path.is_dir():
        return path
    found = sorted(file.name for file in path.glob("*.gguf") if not file.name.startswith("mmproj"))
    firsts = [name for name in found if re.search(r"-0*1-of-\d{5}\.gguf$", name)]
    models = firsts + [name for name in found if not re.search(r"-\d{5}-of-\d{5}\.gguf$", name)]
    if not found or any(path.glob("*.safetensors")):
        return None
    if len(models) != 1:
        raise ValueError(
            f"{path} has {len(models)} models in {len(found)} GGUF files ({', '.join(found[:4])}"
            f"{', ...' if len(found) > 4 else ''}); give the path of one of them."
        )
    return inside(path, models[0])


def inside(directory: Path, name: str) -> Path:
    """The file ``name`` of the directory. Raises ValueError where it is missing or lies outside.

    The hub's cache is the one layout whose links may leave: ``snapshots/<commit>/`` links to
    ``blobs/`` beside it.
    """
    path, root = directory / name, directory.resolve()
    try:
        real, present = path.resolve(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, links in a circle
        raise ValueError(f"{directory} has no file {name!r:.100}: {error!s:.200}.") from error
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    base, lexical = os.path.normpath(directory), os.path.normpath(path)
    leaves = os.path.commonpath([os.path.abspath(base), os.path.abspath(lexical)])
    if leaves != os.path.abspath(base) or not any(real.is_relative_to(r) for r in roots):
        raise ValueError(f"{path} leads to {real}, outside the model directory {root}.")
    if not present:
        raise ValueError(f"{path} is missing.")
    return path
