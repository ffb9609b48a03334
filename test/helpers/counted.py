"""A backend that answers at once, in threads or in an event loop, and counts what it is at."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from helpers.threads import running_threads
from sglang.backend.base import Backend, Completion
from sglang.backend.cancel import aborted_by
from sglang.errors import BackendError
from sglang.ir.chat_template import TEMPLATES


class Counted(Backend):
    """Says "a b". A prompt that ends in "endless " is answered when it is aborted, by an error;
    one that ends in "bad " is refused; those that end in "together " are answered when
    ``together`` calls have run at once.

    Attributes:
        running, peak: calls at the moment, and at most.
        calls, aborted: all calls so far.
        threads: most of the project's threads that were seen.
        commits: texts.
    """

    name = "counted"
    chat_template = TEMPLATES["chatml"]

    def __init__(self, together: int = 0) -> None:
        self.together = together
        self.running = self.peak = self.calls = self.aborted = self.threads = 0
        self.commits: list[str] = []
        self._lock = threading.Lock()

    def complete(self, prompt, params):
        self._began()
        try:
            if prompt.text.endswith("endless "):
                aborted = threading.Event()
                with aborted_by(aborted.set):
                    assert aborted.wait(60), "nobody aborts"
                raise self._was_aborted()
            return self._said(prompt)
        finally:
            self._ended()

    async def acomplete(self, prompt, params):
        self._began()
        try:
            await asyncio.sleep(60 if prompt.text.endswith("endless ") else 0)
            while prompt.text.endswith("together ") and self.peak < self.together:
                await asyncio.sleep(0.01)
            return self._said(prompt)
        except asyncio.CancelledError:
            self._was_aborted()
            raise
        finally:
            self._ended()

    def stream(self, prompt, params):
        (whole,) = self.complete(prompt, params)
        yield from (Completion("a"), whole)

    async def astream(self, prompt, params):
        (whole,) = await self.acomplete(prompt, params)
        for part in (Completion("a"), whole):
            yield part

    def commit(self, prompt):
        self.commits.append(prompt.text)
        return {}

    async def acommit(self, prompt):
        return self.commit(prompt)

    def _said(self, prompt):
        if prompt.text.endswith("bad "):
            raise BackendError("refused")
        return [Completion("a b", {"completion_tokens": 2, "prompt_tokens": 4, "cached_tokens": 1})]

    def _began(self) -> None:
        with self._lock:
            self.calls += 1
            self.running += 1
            self.peak = max(self.peak, self.running)
            self.threads = max(self.threads, running_threads())

    def _ended(self) -> None:
        with self._lock:
            self.running -= 1

    def _was_aborted(self) -> BackendError:
        with self._lock:
            self.aborted += 1
        return BackendError("aborted")


def reaches(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it becomes true."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
