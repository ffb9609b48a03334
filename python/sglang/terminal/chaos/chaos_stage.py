"""Chaos stage: the server of a run, and the faults that are made there."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from sglang.backend.native.endpoint import RuntimeEndpoint
from sglang.errors import SglangError
from sglang.terminal.chaos.cut_proxy import CutProxy
from sglang.terminal.chaos.fault_plan import PlannedFault

RESUME_SECONDS = 120.0  # clients wait so long for a server that is lost
ENGINE_SECONDS = 20.0  # that a fault waits for an engine which is being started again
OF_PROCESSES = ("kill", "stop")
FILLER = {"temperature": 1.0, "ignore_eos": True, "max_new_tokens": 1 << 20}
MOST_FILLER = 4096  # tokens of a filler's prompt: it is to hold memory, not to compute for minutes
LEAST_FILLER = 16


def filler_length(info: Mapping[str, Any], requests: int) -> int:
    """Tokens of each prompt with which so many requests fill a server's KV cache, as far as its
    context allows. ``info``: the answer of /get_model_info."""
    cache = int(info.get("max_total_num_tokens") or info.get("capacity") or MOST_FILLER)
    context = int(info.get("context_length") or MOST_FILLER)
    return max(LEAST_FILLER, min(cache // requests, context // 2, MOST_FILLER))


class ChaosStage:
    """A server, by its URL and where it was started here by its process.

    Attributes:
        backend: the server as clients see it: through a proxy that is cut.
        made: how often each kind of fault was made.
    """

    def __init__(self, url: str, pid: int | None = None, api_key: str | None = None) -> None:
        """Connect to the server at ``url``. Raises ValueError for a URL that is not plain http with
        a host, and SglangError where the server does not answer."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(
                f"--url is {url!r}; connections are cut by a plain proxy: give http://HOST:PORT"
            )
        self._pid = pid
        self._direct = RuntimeEndpoint(url, api_key=api_key, resume_seconds=RESUME_SECONDS)
        self._proxy = CutProxy(parts.hostname, parts.port or 80)
        self.backend = RuntimeEndpoint(
            self._proxy.url, api_key=api_key, resume_seconds=RESUME_SECONDS
        )
        self.made: dict[str, int] = {}

    def settings(self) -> dict[str, Any]:
        """The server's own description; empty where it gives none."""
        with suppress(SglangError):
            return dict(self._direct.get_server_info())
        return {}

    def hit(self, fault: PlannedFault) -> None:
        """Make a fault; one that finds nothing to hit is not counted."""
        if fault.kind == "cut":
            self._proxy.cut()
        elif fault.kind == "squeeze":
            length = filler_length(self._direct.model_info, fault.requests)
            for number in range(fault.requests):
                seed = f"{fault.at}/{number}"  # no two have a beginning in common
                arguments = (fault.seconds, length, random.Random(seed))
                threading.Thread(target=self._fill, args=arguments, daemon=True).start()
        elif not self._signal(fault):
            return
        self.made[fault.kind] = self.made.get(fault.kind, 0) + 1

    def close(self) -> None:
        self.backend.shutdown()
        self._proxy.close()
        self._direct.shutdown()

    def _signal(self, fault: PlannedFault) -> bool:
        """Kill or stop one of the server's engines; whether there was one."""
        import psutil

        until = time.monotonic() + ENGINE_SECONDS
        while time.monotonic() < until:
            with suppress(psutil.Error):
                engines = sorted(psutil.Process(self._pid).children(), key=lambda one: one.pid)
                if engines:
                    chosen = engines[int(fault.pick * len(engines))]
                    chosen.send_signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
                    return True
            time.sleep(0.1)
        return False

    def _fill(self, seconds: float, length: int, chance: random.Random) -> None:
        """Fill the KV memory with one long request, then free it."""
        until = time.monotonic() + seconds
        vocabulary = int(self._direct.model_info.get("vocab_size") or 256)
        ids = [chance.randrange(vocabulary) for _ in range(length)]
        body = {"input_ids": ids, "sampling_params": FILLER, "stream": True}
        with suppress(SglangError):
            for _ in self._direct.call_stream(body):
                if time.monotonic() > until:
                    return
