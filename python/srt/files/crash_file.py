"""Crash file: what a bundle for ``sglang replay`` is on disk.

JSON: the work, the server's settings without secrets, the versions, and what failed. It is readable
by its owner alone, because prompts are in it.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang.srt.core.version import __version__

FORMAT = 1
PACKAGES = ("torch", "numpy", "sgl-kernel", "tokenizers", "msgspec", "pydantic", "llguidance")
SECRETS = ("key", "token", "password", "secret")
_SETTINGS = ("settings", "server")  # parts of a bundle that may hold secrets


def write_bundle(path: str | Path, parts: Mapping[str, Any]) -> None:
    """Write a bundle of these parts. Raises OSError."""
    data = {"sglang_bundle": FORMAT, **parts}
    for part in _SETTINGS:
        data[part] = {k: v for k, v in data[part].items() if not _secret(k)}
    text = json.dumps(data, indent=1, default=repr)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(handle).st_mode):  # a device keeps its mode
            os.fchmod(handle, 0o600)  # of a file that was there too
        file.write(text)


def versions() -> dict[str, str]:
    """Versions of what computes."""
    found = {"sglang": __version__, "python": platform.python_version(),
             "machine": f"{platform.system()} {platform.machine()}"}  # fmt: skip
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _secret(name: str) -> bool:
    return any(word in name.split("_") for word in SECRETS)
