"""Chaos work: what is done again and again; each piece has one right answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sglang.errors import SglangError
from sglang.terminal.bounded_file import read_bounded_text
from sglang.terminal.program_file import ProgramFileError, failure_of, load_program

MAX_REQUESTS = 10_000
MAX_REQUEST_BYTES = 256 << 20
QUESTIONS = ("Repeat: lamp", "Repeat: sea and sky", "List three colours.", "Count to five.")


class ChaosWork(Protocol):
    """Pieces of work, by their number."""

    pieces: int

    def do(self, backend: Any, number: int) -> str:
        """Do one piece on a backend and return its answer. Raises SglangError."""

    def data(self) -> dict[str, Any]:
        """The work as plain data, from which ``work_of`` makes it again."""


class ProgramWork:
    """One program with its arguments."""

    pieces = 1

    def __init__(self, target: str, values: dict[str, Any], params: dict[str, Any]) -> None:
        """Load the program ``target``. Raises ProgramFileError where that fails."""
        self._target, self._values = target, values
        self._params = {"temperature": 0, **params}
        self._program = load_program(target)

    def do(self, backend: Any, number: int) -> str:
        try:
            return self._run(backend)
        except SglangError:
            raise
        except Exception as error:
            if (failure := failure_of(self._program, error)) is None:
                raise
            raise failure from error

    def _run(self, backend: Any) -> str:
        if self._program.is_async:
            import asyncio

            state = asyncio.run(
                self._program.bind(**self._values).arun(backend=backend, **self._params)
            )
        else:
            state = self._program.bind(**self._values).run(backend=backend, **self._params)
        return state.text()

    def data(self) -> dict[str, Any]:
        home, _, _ = self._target.rpartition(":")
        path = Path(home or self._target)
        if not path.is_file():
            raise ProgramFileError(f"{self._target} is no file, so a bundle cannot hold its source")
        return {
            "file": path.name, "name": self._program.func.__name__,
            "source": path.read_text(encoding="utf-8"), "values": self._values,
            "params": self._params,
        }  # fmt: skip


class RequestWork:
    """Bodies of ``/generate``."""

    def __init__(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Keep the requests' ``bodies``. Raises ValueError where there are none or too many, or one
        is no object."""
        if not 1 <= len(bodies) <= MAX_REQUESTS:
            raise ValueError(f"there are {len(bodies)} requests; give 1 to {MAX_REQUESTS}")
        for number, body in enumerate(bodies):
            if not isinstance(body, dict):
                raise ValueError(f"request {number} is {body!r:.40}, no JSON object")
        self._bodies, self.pieces = list(bodies), len(bodies)

    def do(self, backend: Any, number: int) -> str:
        body = {**self._bodies[number % self.pieces], "stream": True}
        last: dict[str, Any] = {}
        for event in backend.call_stream(body):
            last = event
        return str(last.get("text", ""))

    def data(self) -> dict[str, Any]:
        return {"requests": self._bodies}


def own_work() -> RequestWork:
    """Short requests, for a server whose user names no work."""
    return RequestWork(
        [
            {"text": f"User: {text}\nAssistant:",
             "sampling_params": {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}}
            for text in QUESTIONS
        ]
    )  # fmt: skip


def read_requests(path: str) -> RequestWork:
    """A file of JSON lines, each a body of ``/generate``. Raises OSError and ValueError."""
    bodies = []
    for number, line in enumerate(read_bounded_text(path, MAX_REQUEST_BYTES).split("\n"), 1):
        if line.strip():
            try:
                bodies.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from error
    return RequestWork(bodies)


def work_of(data: dict[str, Any], folder: Path) -> ChaosWork:
    """The work that ``data`` describes. A program's source is written into ``folder``, which has to
    stay while the work is done, and imported: replaying a bundle runs that code. Raises
    ValueError."""
    if "requests" in data:
        return RequestWork(data["requests"])
    try:
        file = folder / Path(str(data["file"])).name
        file.write_text(data["source"], encoding="utf-8")
        return ProgramWork(f"{file}:{data['name']}", dict(data["values"]), dict(data["params"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the bundle's work is damaged: {error!r}") from error
