"""TokenizerError, and bounded reading of a model's tokenizer files inside the model's directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang.srt.files.location import inside

MAX_FILE = 1 << 28  # bytes of a vocabulary
MAX_CONFIG = 1 << 24  # bytes of any other file
MAX_TOKENS = 1 << 21
MAX_PIECE = 1 << 10  # bytes of a token whose merges are searched for


class TokenizerError(ValueError):
    """The tokenizer's files are missing or cannot be read."""


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Convert errors of the block to a TokenizerError that names the file."""
    try:
        yield
    except BaseException as error:
        raise failed(error, path) from error


def failed(error: BaseException, path: Path) -> BaseException:
    """Return the TokenizerError for an exception, or for a panic of the Rust library (which is not
    an ``Exception``). Other BaseExceptions are returned unchanged."""
    panic = type(error).__name__ == "PanicException"
    if isinstance(error, TokenizerError) or not (panic or isinstance(error, Exception)):
        return error
    reason = str(error)[:2000] or type(error).__name__
    return TokenizerError(reason if str(path) in reason else f"cannot read {path}: {reason}")


def read_bytes(directory: Path, name: str, most: int = MAX_CONFIG) -> bytes | None:
    """Return the bytes of a file; None if there is no such file. Raises TokenizerError."""
    path = directory / name
    if not path.exists() and not path.is_symlink():
        return None
    try:
        size = inside(directory, name).stat().st_size
        if size > most:
            raise TokenizerError(f"{path} has {size} bytes; at most {most} are read")
        return path.read_bytes()
    except TokenizerError:
        raise
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def read_text(directory: Path, name: str, most: int = MAX_CONFIG) -> str | None:
    data = read_bytes(directory, name, most)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"cannot read {directory / name}: {error}") from error


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """Return the JSON object of a file; {} if the file is missing or empty. Raises
    TokenizerError."""
    source = read_text(directory, name)
    try:
        value = json.loads(source) if source else {}
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{directory / name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{directory / name} is not a JSON object")
    return value
