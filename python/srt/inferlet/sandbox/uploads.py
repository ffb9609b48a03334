"""Uploads: the programs that clients have sent, by the SHA-256 of their bytes. The same bytes may
be several programs, one in each language, but of different tenants.

A program in Python or JavaScript is kept as its text. WebAssembly is validated and compiled in a
process of its own before it is kept; a precompiled file is never taken from a client.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

from sglang.srt.inferlet.host.compiling import ProgramRefused, compiled_beside
from sglang.srt.requests.request_error import RequestError

COMPILE_SECONDS, COMPILE_BYTES = 60, 4 << 30
Language = Literal["python", "javascript"]
Kind = Literal[Language, "module", "component"]
LANGUAGES: dict[Language, str] = {"python": "Python", "javascript": "JavaScript"}


@dataclass(eq=False)
class UploadedProgram:
    """A program, which several tenants may have sent.

    Attributes:
        id: SHA-256 of its bytes, in hex.
        size: number of its bytes.
        source: text of a program in a language; "" of others.
        path: the precompiled file; "" of a text.
        names: name that each tenant gave it, by the tenant.
        created: seconds since the epoch.
        runs: those of it that go on. They need the file: at their start, which may wait for other
            programs, and again where their host dies.
    """

    id: str
    kind: Kind
    size: int
    source: str = ""
    path: str = ""
    names: dict[str, str] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))
    runs: int = 0

    def run_ended(self) -> None:
        """A run of it has ended."""
        self.runs -= 1
        self.forget_file()

    def forget_file(self) -> None:
        """Remove the file, unless a tenant has the program or a run of it goes on."""
        if self.path and not self.names and self.runs <= 0:
            with suppress(OSError):
                Path(self.path).unlink()

    @property
    def language(self) -> Language | None:
        """None of WebAssembly."""
        return self.kind if self.kind == "python" or self.kind == "javascript" else None

    def shown(self, owner: str) -> dict[str, object]:
        """The program as an object of the API."""
        return {
            "id": self.id, "object": "inferlet", "name": self.names[owner], "kind": self.kind,
            "bytes": self.size, "created": self.created,
        }  # fmt: skip


class Uploads:
    """Programs of all tenants, in memory and in a temporary directory.

    ``most``: programs that one tenant may have.
    """

    def __init__(self, most: int) -> None:
        """Make a temporary directory for at most ``most`` programs. Raises OSError."""
        self._most = most
        self._programs: dict[tuple[str, Language | None], UploadedProgram] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="sglang-inferlets-"))
        self._compiling = asyncio.Semaphore(1)
        # One upload of each tenant stands in line for it; the tenant's others wait for that.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # A program may be sent anew while runs of the one that was removed go on.
        self._numbers = itertools.count(1)  # names of files

    async def put(
        self, owner: str, data: bytes, name: str, language: Language | None
    ) -> UploadedProgram:
        """Keep a program; ``language`` is None for WebAssembly. Raises RequestError where it is
        none, or the tenant has too many."""
        digest = hashlib.sha256(data).hexdigest()
        key, made = (digest, language), None
        if language is not None:
            made = UploadedProgram(digest, language, len(data), data.decode())
        elif key not in self._programs:
            self._admit(owner, digest, language)
            made = await self._compiled(owner, digest, data)
        try:  # others may have sent programs while this one was compiled
            found = self._programs.get(key) or made
            assert found is not None
            if owner not in found.names:
                self._admit(owner, digest, language)
            self._programs[key] = found
            found.names[owner] = name
        finally:
            if made is not None:
                made.forget_file()
        return found

    def get(self, owner: str, digest: str) -> UploadedProgram:
        """A tenant's program. Raises RequestError ``not_found``."""
        for language in (*LANGUAGES, None):
            found = self._programs.get((digest, language))
            if found is not None and owner in found.names:
                return found
        raise RequestError(f"There is no inferlet {digest!r:.80}.", code="not_found")

    def all(self, owner: str) -> list[UploadedProgram]:
        """The programs of a tenant, oldest first."""
        return [program for program in self._programs.values() if owner in program.names]

    def remove(self, owner: str, digest: str) -> None:
        """Forget a tenant's program; runs of it go on. Raises RequestError ``not_found``."""
        found = self.get(owner, digest)
        del found.names[owner]
        if not found.names:
            del self._programs[digest, found.language]
            found.forget_file()

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _admit(self, owner: str, digest: str, language: Language | None) -> None:
        own = self.all(owner)
        for program in own:
            if program.id == digest and program.language != language:
                raise RequestError(
                    f"These bytes are an inferlet of the kind {program.kind} already; delete that.",
                    code="conflict",
                )
        if len(own) >= self._most:
            raise RequestError(
                f"There are {self._most} inferlets already (--inferlet-max-programs); delete one.",
                code="conflict",
            )

    async def _compiled(self, owner: str, digest: str, data: bytes) -> UploadedProgram | None:
        """The program; None where the same bytes became one while this waited for its turn."""
        turn = self._turns.setdefault(owner, asyncio.Lock())
        async with turn, self._compiling:
            if (digest, None) in self._programs:
                return None
            source = self._directory / f"{next(self._numbers)}.wasm"
            target = source.with_suffix(".cwasm")
            try:
                source.write_bytes(data)
                component = await compiled_beside(source, target, COMPILE_SECONDS, COMPILE_BYTES)
            except ProgramRefused as error:
                raise RequestError(f"The inferlet is refused: {error}.", "wasm") from None
            finally:
                for ending in (".wasm", ".part"):
                    source.with_suffix(ending).unlink(missing_ok=True)
        kind: Kind = "component" if component else "module"
        return UploadedProgram(digest, kind, len(data), path=str(target))
