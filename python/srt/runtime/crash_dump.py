"""CrashDump: the requests of a lost engine as a file that ``sglang replay`` runs again.

Within a fraction of a second after an engine is lost, all its requests notice the loss and report
to the dump. One bundle (``files/crash_file``) holds the prompts, sampling parameters and seeds of
these requests, the server's settings and the versions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.ir.sampling import PARAMETERS, SamplingParams
from sglang.srt.config import Config
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.files.crash_file import versions, write_bundle
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.resume_order import ResumeOrder
from sglang.srt.requests.completion.serving_engines import EngineLeft
from sglang.srt.runtime.supervisor import EngineAbsent

log = logging.getLogger("sglang.server")
GATHERING = 0.2  # seconds within which all requests of a lost engine report to the dump
MOST_REQUESTS = 1000
MOST_TOKENS = 1 << 20  # prompt tokens of a bundle
MOST_FILES = 32  # bundles of a folder, after which no more are written
ELSEWHERE = ("host", "port", "crash_dump_folder", "engines")
"""Settings without a use in a replay on another machine."""


@dataclass
class _Lost:
    """The requests of one lost engine."""

    error: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    left_out: int = 0

    def add(self, request: CompletionRequest, text: str) -> None:
        """Add a request with its text so far. A request that a bundle cannot represent, or has no
        room for, is only counted (``left_out``)."""
        full = len(self.bodies) >= MOST_REQUESTS
        if full or self.tokens + len(request.prompt) > MOST_TOKENS or not _whole(request):
            self.left_out += 1
            return
        self.tokens += len(request.prompt)
        self.failures.append(
            {"piece": len(self.bodies), "way": "engine lost", "error": self.error,
             "expected": "", "found": text}
        )  # fmt: skip
        self.bodies.append(body_of(request))


class CrashDump:
    """Writes bundles into a folder. Call every method on the event loop of the clients."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Create ``folder`` for the bundles. Raises OSError if that fails."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._settings = folder, changed_settings(config)
        self._lost: dict[Client, _Lost] = {}
        self._writing: set[asyncio.Task[None]] = set()

    def note(
        self, client: Client, error: EngineLost, request: CompletionRequest, text: str
    ) -> None:
        """Record that ``request`` was on a lost engine and had generated ``text``. An engine that
        has left or is still being started is ignored, because it lost no request."""
        if isinstance(error, (EngineLeft, EngineAbsent)):
            return
        if client not in self._lost:
            self._lost[client] = _Lost(str(error))
            task = asyncio.create_task(self._write(client))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        self._lost[client].add(request, text)

    async def close(self) -> None:
        """Wait until all recorded requests are written."""
        await asyncio.gather(*self._writing)

    async def _write(self, client: Client) -> None:
        await asyncio.sleep(GATHERING)
        lost = self._lost.pop(client)
        try:
            path = await asyncio.to_thread(self._save, lost)
        except OSError as error:
            log.error("the requests of the lost engine could not be written: %s", error)
            return
        if path is None:
            log.error("%s has %d bundles, so the requests of the lost engine are not written",
                      self._folder, MOST_FILES)  # fmt: skip
            return
        log.error("%d requests of the lost engine are in %s; repeat them with: sglang replay %s",
                  len(lost.bodies), path, path)  # fmt: skip

    def _save(self, lost: _Lost) -> Path | None:
        """Write a bundle and return its path, or None if the folder is full. Raises OSError."""
        if len(list(self._folder.glob("engine-*.json"))) >= MOST_FILES:
            return None
        path = self._new_file()
        server = {"error": lost.error, "requests_left_out": lost.left_out}
        try:
            write_bundle(path, {
                "work": {"requests": lost.bodies}, "settings": self._settings, "server": server,
                "faults": [], "clients": 1, "seconds": 0.0, "failures": lost.failures,
                "versions": versions(),
            })  # fmt: skip
        except OSError:  # a partial bundle would count as a file, and no replay could read it
            with suppress(OSError):
                path.unlink()
            raise
        return path

    def _new_file(self) -> Path:
        """Create an empty file under a name that is not in use. Raises OSError."""
        name = time.strftime("engine-%Y%m%d-%H%M%S", time.gmtime())
        for ending in ("", *(f"-{n}" for n in range(2, MOST_FILES + 1))):
            path = self._folder / f"{name}{ending}.json"
            with suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
                return path
        raise FileExistsError(f"{name} and all names like it are taken")


@asynccontextmanager
async def crash_dumps(order: ResumeOrder, config: Config) -> AsyncIterator[None]:
    """Write the requests of lost engines to ``--crash-dump-folder`` during the block, if that is
    set. Raises OSError if the folder cannot be created."""
    folder = config.operations.crash_dump_folder
    if not folder:
        yield
        return
    try:
        order.losses = dump = CrashDump(Path(folder), config)
    except OSError as error:
        raise OSError(f"--crash-dump-folder {folder} cannot be a folder: {error}") from error
    try:
        yield
    finally:
        await dump.close()


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without secrets and ``ELSEWHERE``."""
    default: Mapping[str, Any] = Config.of().settings()
    return {
        name: value
        for name, value in config.public().items()
        if value != default[name] and name not in ELSEWHERE
    }


def body_of(request: CompletionRequest) -> dict[str, Any]:
    """Return a body of ``/generate`` that makes the same request."""
    body: dict[str, Any] = {
        "input_ids": request.prompt.tolist(), "sampling_params": _params(request.sampling),
    }  # fmt: skip
    if request.generated:
        body["output_ids"] = request.generated.tolist()
    if request.score_choices:
        body["sampling_params"]["choices_scoring"] = "whole"
    if (wanted := request.logprobs) is not None:
        body |= {
            "return_logprob": True, "logprob_start_len": wanted.start,
            "top_logprobs_num": wanted.top, "token_ids_logprob": list(wanted.probe),
            "masked_logprobs": wanted.masked,
        }  # fmt: skip
    rest = {"priority": request.priority, "cache_salt": request.namespace,
            "lora_path": request.adapter}  # fmt: skip
    return body | {name: value for name, value in rest.items() if value}


def _whole(request: CompletionRequest) -> bool:
    """Whether a body of token ids can represent the whole request."""
    return not (request.media or request.segments or request.scored)


def _params(sampling: SamplingParams) -> dict[str, Any]:
    values = {name: getattr(sampling, name) for name in PARAMETERS}
    found = {name: value for name, value in values.items() if value != PARAMETERS[name].default}
    if (constraint := sampling.constraint) is not None:
        choices = constraint.kind == "choices"
        found[constraint.kind] = constraint.choices() if choices else constraint.text
        if constraint.whitespace is not None:
            found["whitespace_pattern"] = constraint.whitespace
    return found
