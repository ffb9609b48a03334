"""Crash bundle: one file with what reproduces a failure.

JSON: the work (a program's source and arguments, or requests), the server's settings with their
seed, the plan of faults, the versions, and what failed. No key and no answer of another request is
in it.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sglang.terminal.bounded_file import read_bounded_text
from sglang.terminal.chaos.fault_plan import FAULTS, PlannedFault
from sglang.version import __version__

FORMAT = 1
MAX_BYTES = 256 << 20
PACKAGES = ("torch", "numpy", "sgl-kernel", "tokenizers", "msgspec", "pydantic", "llguidance")
FAILURE = ("piece", "way", "error", "expected", "found")
SECRETS = ("key", "token", "password", "secret")


@dataclass
class CrashBundle:
    """All that reproduces a failure.

    Attributes:
        work: as ``ChaosWork.data`` gives it.
        settings: that the server was started with, by name.
        server: what the server said of itself, its whole configuration included.
        faults: made while the work was done.
        clients: pieces of work at a time.
        failures: what was wrong: number of the piece, way, error, expected and found text.
        versions: of Python, sglang and what it computes with.
    """

    work: dict[str, Any]
    settings: dict[str, Any]
    server: dict[str, Any] = field(default_factory=dict)
    faults: list[PlannedFault] = field(default_factory=list)
    clients: int = 1
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=lambda: versions())

    def save(self, path: str) -> None:
        """Write it, readable by its owner alone: prompts are in it. Raises OSError."""
        data = {"sglang_bundle": FORMAT, **asdict(self)}
        for part in ("settings", "server"):
            data[part] = {k: v for k, v in data[part].items() if not _secret(k)}
        text = json.dumps(data, indent=1, default=repr)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            if stat.S_ISREG(os.fstat(handle).st_mode):  # a device keeps its mode
                os.fchmod(handle, 0o600)  # of a file that was there too
            file.write(text)

    def differences(self) -> list[str]:
        """Versions here that are not those of the bundle, as sentences."""
        here = versions()
        return [
            f"{name} is {here.get(name, 'absent')} here and was {version}"
            for name, version in self.versions.items()
            if here.get(name) != version
        ]


def load_bundle(path: str) -> CrashBundle:
    """Raises OSError, and ValueError for a file that is no bundle."""
    text = read_bounded_text(path, MAX_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no bundle: {error}") from error
    if not isinstance(data, dict) or data.pop("sglang_bundle", None) != FORMAT:
        raise ValueError(f"{path} is no bundle of format {FORMAT}; give a file of sglang chaos")
    if unknown := data.keys() - CrashBundle.__dataclass_fields__:
        raise ValueError(f"{path} is damaged: {sorted(unknown)[0]!r} is no part of a bundle")
    try:
        found = TypeAdapter(CrashBundle).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} is damaged: {where}: {first['msg']}") from error
    for number, failure in enumerate(found.failures):
        if missing := [name for name in FAILURE if name not in failure]:
            raise ValueError(f"{path} is damaged: failures.{number} has no {missing[0]!r}")
    if kinds := [one.kind for one in found.faults if one.kind not in FAULTS]:
        raise ValueError(f"{path} has a fault {kinds[0]!r}; there are {', '.join(FAULTS)}")
    return found


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
