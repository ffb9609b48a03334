"""A remote engine without a model: the real engine, loop and socket over ``TextWorker``, on a
thread of the test or as a process of its own.

    python remote_child.py ADDRESS KEYS HEARTBEAT [PASS_SECONDS]

The first line of the process's output ends with the address. KEYS is a file, or "-".
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers.paths import PYTHON
from helpers.text_worker import TextWorker, drawn
from sglang.srt.config import Config
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Threaded
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.loop import serve
from sglang.srt.remote.curve_keys import EngineKeys, read_engine_keys
from sglang.srt.remote.fronts import FrontLimits, Fronts
from sglang.srt.remote.fronts_channel import FrontsChannel, new_boot
from sglang.srt.remote.handshake import (
    Arithmetic,
    EngineFacts,
    messages_digest,
    vocabulary_digest,
)

TOKENS = [bytes([i % 256]) for i in range(160)]
LIMITS = FrontLimits()
LOCAL = "tcp://127.0.0.1:*"


def make_engine(seconds: float = 0.0, worker: Any = None) -> EngineCore:
    worker = worker or TextWorker(len(TOKENS), seconds=seconds)
    info = EngineInfo(
        model_path="toy", architecture="Toy", dtype="none", device="none",
        vocab_size=len(TOKENS), context_length=4096, capacity=16384, page_size=1,
        max_running_requests=16, max_queued_requests=4096, eos=(),
    )  # fmt: skip
    return EngineCore(Threaded(worker), info, Config.of(max_queued_requests=4096).schedule, TOKENS)


def facts_of(engine: EngineCore, **facts: Any) -> EngineFacts:
    known: dict[str, Any] = {
        "model": "toy", "vocabulary": vocabulary_digest(TOKENS), "arithmetic": Arithmetic(),
        "info": engine.info, "messages": messages_digest(), **facts,
    }  # fmt: skip
    return EngineFacts(**known)


def expected_text(prompt: list[int], count: int) -> list[int]:
    """The greedy text of ``TextWorker``, by its definition."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(drawn(tokens, len(TOKENS)))
    return tokens[len(prompt) :]


class ThreadEngine:
    """An engine on a thread.

    Attributes:
        engine, channel, fronts: its parts; their counters may be read at any time.
    """

    def __init__(
        self, address: str = LOCAL, keys: EngineKeys | None = None, heartbeat: float = 0.6,
        limits: FrontLimits = LIMITS, seconds: float = 0.0, worker: Any = None,
        **facts: Any,
    ) -> None:  # fmt: skip
        self.channel = FrontsChannel(address, keys, heartbeat)
        self.engine = make_engine(seconds, worker)
        self.fronts = Fronts(
            facts_of(self.engine, **facts), self.engine.store.contexts, limits, new_boot()
        )
        self.channel.open(self.fronts)
        self.address = self.channel.address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            serve(self.engine, self.channel)
        finally:
            self.channel.close()
            self.engine.close()

    def stop(self) -> None:
        self.channel.stopping = "the test is over"
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


@contextmanager
def on_a_thread(**options: Any) -> Iterator[ThreadEngine]:
    engine = ThreadEngine(**options)
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def as_a_process(
    address: str = LOCAL, keys: str = "-", heartbeat: float = 0.6, seconds: float = 0.0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, __file__, address, keys, str(heartbeat), str(seconds)],
        stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline().split()[-1]
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def main(address: str, keys: str, heartbeat: str, seconds: str = "0") -> None:
    engine = ThreadEngine(
        address, None if keys == "-" else read_engine_keys(keys), float(heartbeat),
        seconds=float(seconds),
    )  # fmt: skip
    print("listens at", engine.address, flush=True)
    engine._thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
