"""Side: one system that a claim is run on, ready to be asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from sglang.backend.base import Backend
from sglang.errors import SglangError

from benchmark.harness.apis.openai_url import OpenaiUrl
from benchmark.harness.claim import Claim, Item
from benchmark.harness.measure import Outcome, run_plain, run_program

BACKENDS = ("sglang", "openai-url", "guidance", "transformers")


class Side(Protocol):
    """``backend`` is one of ``BACKENDS``."""

    name: str
    backend: str

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        """All items once. Whatever it raises tells why this side cannot."""

    def flush(self) -> None:
        """Forget all KV of earlier runs, where there is a way to ask for that."""

    def close(self) -> None:
        """End what was started."""


class Ours:
    """Our programs on a backend of ours: an ``Engine``, or the ``endpoint`` of a server."""

    backend = "sglang"

    def __init__(self, name: str, backend: Backend, *, ignore_eos: bool) -> None:
        self.name, self._backend, self._ignore_eos = name, backend, ignore_eos

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        params: dict[str, Any] = {}
        if self._ignore_eos and not claim.constrained:
            params["ignore_eos"] = True
        return run_program(claim, self._backend, items, mode, **params)

    def flush(self) -> None:
        with suppress(SglangError):
            self._backend.flush_cache()

    def close(self) -> None:
        self._backend.shutdown()


class Plain:
    """Plain client code on a server that speaks OpenAI's API."""

    backend = "openai-url"

    def __init__(
        self, name: str, url: str, model: str, *, ignore_eos: bool, dialect: str = "sglang"
    ) -> None:
        self.name, self._url, self._model = name, url, model
        self._ignore_eos, self._dialect = ignore_eos, dialect

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        extra = {"ignore_eos": True} if self._ignore_eos and not claim.constrained else {}
        # A client belongs to the event loop of one run.
        api = OpenaiUrl(self._url, self._model, extra=extra, dialect=self._dialect)
        found = run_plain(claim, api, items, mode)
        return Outcome(
            found.seconds, found.answers, found.latencies, api.prompt_tokens, api.cached_tokens,
            api.completion_tokens,
        )  # fmt: skip

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
