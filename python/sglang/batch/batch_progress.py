"""Progress: one line that tells how far a batch is, how fast, and how much the cache saved."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, TextIO

from sglang.run.run_scope import Usage

INTERVAL_SECONDS = 0.2


class BatchProgress:
    """A tqdm bar where tqdm is installed, else a plain line. Thread-safe.

    ``restored`` items are done before it begins; rates and the time left are of the others.
    """

    def __init__(
        self, total: int, out: TextIO | None = None, use_tqdm: bool = True, restored: int = 0
    ) -> None:
        self.usage = Usage()
        self.failed = 0
        self._total, self._done, self._restored = total, restored, restored
        self._out = out or sys.stderr
        self._began = time.perf_counter()
        self._shown = 0.0
        self._lock = threading.Lock()
        self._bar: Any = None
        if use_tqdm:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, initial=restored, file=self._out, unit="item")

    def advance(self, usage: Usage, failed: bool = False) -> None:
        """One item has finished."""
        with self._lock:
            self._done += 1
            self.failed += failed
            self.usage.merge(usage)
            if self._bar is not None:
                self._bar.set_postfix_str(self.summary(), refresh=False)
                self._bar.update()
            elif time.perf_counter() - self._shown > INTERVAL_SECONDS:
                self._shown = time.perf_counter()
                self._out.write("\r" + self._line())

    def summary(self) -> str:
        """Generated tokens per second, the share of prompt tokens found in the cache, failures."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        share = self.usage.cached_tokens / max(self.usage.prompt_tokens, 1)
        rate = self.usage.completion_tokens / seconds
        failures = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.0f} tokens/s, {share:.0%} cached{failures}"

    def _line(self) -> str:
        seconds = time.perf_counter() - self._began
        left = seconds / max(self._done - self._restored, 1) * (self._total - self._done)
        return f"{self._done}/{self._total} items, {left:.0f} s left, {self.summary()} "

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._out.write("\r" + self._line() + "\n")
