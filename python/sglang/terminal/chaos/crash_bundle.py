"""Crash bundle: one file with what reproduces a failure.

The work is a program's source and arguments, or requests. With it come the server's settings with
their seed, the plan of faults, the versions, and what failed. No key and no answer of another
request is in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sglang.srt.files.crash_file import FORMAT, versions, write_bundle
from sglang.terminal.bounded_file import read_bounded_text
from sglang.terminal.chaos.fault_plan import FAULTS, PlannedFault

MAX_BYTES = 256 << 20
FAILURE = ("piece", "way", "error", "expected", "found")


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
    versions: dict[str, str] = field(default_factory=versions)

    def save(self, path: str) -> None:
        """Write it. Raises OSError."""
        write_bundle(path, asdict(self))

    def differences(self) -> list[str]:
        """Versions here that are not those of the bundle, as sentences."""
        here = versions()
        return [
            f"{name} is {here.get(name, 'absent')} here and was {version}"
            for name, version in self.versions.items()
            if here.get(name) != version
        ]


def load_bundle(path: str) -> CrashBundle:
    """Read a bundle. Raises OSError, and ValueError for a file that is no bundle."""
    text = read_bounded_text(path, MAX_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no bundle: {error}") from error
    if not isinstance(data, dict) or data.pop("sglang_bundle", None) != FORMAT:
        raise ValueError(
            f"{path} is no bundle of format {FORMAT}; give a file of sglang chaos, "
            "or of a server's --crash-dump-folder"
        )
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
