"""Side: one system that a claim is run on, ready for requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import httpx
from sglang.backend.base import Backend
from sglang.errors import BackendError, Unsupported

from benchmark.harness.apis.openai_url import OpenaiUrl
from benchmark.harness.claim import Claim, Item
from benchmark.harness.measure import Outcome, run_plain, run_program
from benchmark.harness.server import Server
from benchmark.peers.child import Child

BACKENDS = ("sglang", "openai-url", "guidance", "transformers")
E = TypeVar("E", bound=Exception)
RUN_SECONDS = 1800.0
FLUSH_SECONDS = 10.0  # for what is still computed ahead


class Side(Protocol):
    """``backend`` is one of ``BACKENDS``; ``versions`` are of what it runs on, where known."""

    name: str
    backend: str
    versions: Mapping[str, str]

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        """All items once. Whatever it raises tells why this side cannot."""

    def flush(self) -> None:
        """Forget all KV of earlier runs, where there is a way to ask for that."""

    def pause(self) -> None:
        """Stop its processes, so that it takes nothing from others while they are measured."""

    def resume(self) -> None:
        """Let them go on: before a run, and before ``flush``."""

    def close(self) -> None:
        """End what was started."""


class _Served:
    """Base of sides of a server; ``server`` is one that was started for it."""

    def __init__(
        self, name: str, ignore_eos: bool, server: Server | None, versions: Mapping[str, str] | None
    ) -> None:
        self.name, self._ignore_eos, self._server = name, ignore_eos, server
        self.versions: Mapping[str, str] = versions or {}

    def pause(self) -> None:
        if self._server is not None:
            self._server.pause()

    def resume(self) -> None:
        if self._server is not None:
            self._server.resume()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _params(self, claim: Claim) -> dict[str, Any]:
        return {"ignore_eos": True} if self._ignore_eos and not claim.constrained else {}


class Ours(_Served):
    """The project's programs on its own backend: an ``Engine``, or the ``endpoint`` of a server."""

    backend = "sglang"

    def __init__(
        self, name: str, backend: Backend, *, ignore_eos: bool, server: Server | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, ignore_eos, server, versions)
        self._backend = backend

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        return run_program(claim, self._backend, items, mode, **self._params(claim))

    def flush(self) -> None:
        """Empty the prefix cache, since hits from an earlier run would count as speed. Raises
        BackendError where the server stays busy."""
        with suppress(Unsupported):
            _until_idle(self._backend.flush_cache, BackendError, lambda error: error.status)

    def close(self) -> None:
        self._backend.shutdown()
        super().close()


class Plain(_Served):
    """Plain client code on a server that speaks OpenAI's API. ``flush_path``: the route that
    empties its prefix cache, if it has one."""

    backend = "openai-url"

    def __init__(
        self, name: str, url: str, model: str, *, ignore_eos: bool, dialect: str = "sglang",
        server: Server | None = None, versions: Mapping[str, str] | None = None,
        flush_path: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name, ignore_eos, server, versions)
        self._url, self._model = url, model
        self._dialect, self._flush_path = dialect, flush_path

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        # A client belongs to the event loop of one run.
        api = OpenaiUrl(self._url, self._model, extra=self._params(claim), dialect=self._dialect)
        found = run_plain(claim, api, items, mode)
        return Outcome(
            found.seconds, found.answers, found.latencies, api.prompt_tokens, api.cached_tokens,
            api.completion_tokens,
        )  # fmt: skip

    def flush(self) -> None:
        """Empty the prefix cache. Raises httpx.HTTPError where the server stays busy."""
        if self._flush_path:
            _until_idle(self._ask_to_flush, httpx.HTTPStatusError, lambda e: e.response.status_code)

    def _ask_to_flush(self) -> None:
        httpx.post(self._url + self._flush_path, timeout=60).raise_for_status()


def _until_idle(
    flush: Callable[[], object], failure: type[E], status: Callable[[E], int | None]
) -> None:
    """``flush``, again where requests are still running, which is a bad request."""
    until = time.monotonic() + FLUSH_SECONDS
    while True:
        try:
            flush()
            return
        except failure as error:
            if status(error) != httpx.codes.BAD_REQUEST or time.monotonic() > until:
                raise
        time.sleep(0.05)


class Hosted:
    """Plain client code on a library, both in a process of their own (``apis.host``), which runs
    only while a request is in flight."""

    def __init__(self, name: str, backend: str, child: Child, versions: Mapping[str, str]) -> None:
        self.name, self.backend, self.versions, self._child = name, backend, versions, child

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        module = claim.module or f"benchmark.{claim.name}.claim"
        question = {"do": "claim", "module": module, "items": [dict(i) for i in items]}
        return Outcome(**self._child.ask({**question, "mode": mode}, RUN_SECONDS))

    def flush(self) -> None:
        """Nothing is kept from one call to the next, or it is the last call's prompt."""

    def pause(self) -> None:
        self._child.pause()

    def resume(self) -> None:
        """Nothing to do: a request wakes the process."""

    def close(self) -> None:
        self._child.close()
