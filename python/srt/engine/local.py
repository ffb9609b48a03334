"""LocalEngine: the engine on a thread of this process, for offline use."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence

from sglang.srt.config import Config
from sglang.srt.core.clock import SYSTEM_CLOCK
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.core.messages import Event, Verb
from sglang.srt.engine.admission import MakeVocabulary, make_compiler
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Executor, local_executor
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.loop import serve
from sglang.srt.engine.speculation_setup import make_drafts
from sglang.srt.kv_events.publisher import EventPublisher


class _QueueChannel:
    """``Channel`` in one process: a thread-safe queue for verbs, the client's loop for events."""

    def __init__(self) -> None:
        self.verbs: queue.SimpleQueue[Sequence[Verb] | None] = queue.SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.client: Client | None = None
        self.lost: EngineLost | None = None

    def receive(self, seconds: float, limit: int) -> list[Verb] | None:
        """Return all queued verbs, whatever ``limit``: they are decoded and in memory already."""
        out: list[Verb] = []
        wait: float | None = seconds
        while True:
            try:
                some = self.verbs.get(timeout=wait) if wait else self.verbs.get_nowait()
            except queue.Empty:
                return out
            if some is None:
                return None
            out.extend(some)
            wait = None

    def emit(self, events: Sequence[Event]) -> None:
        if self.client is not None:
            self._call(self.client.deliver, events)

    def fail(self, error: EngineLost) -> None:
        self.lost = error
        if self.client is not None:
            self._call(self.client.fail, error)

    def _call(self, function, value) -> None:  # type: ignore[no-untyped-def]
        assert self.loop is not None
        try:
            self.loop.call_soon_threadsafe(function, value)
        except RuntimeError:  # the loop is closed, so the client cannot read any more
            self.client = None


class LocalEngine:
    """Loads the model in the calling thread, then computes on a daemon thread.

    Args:
        token_bytes: the bytes of every token id.
        executor: (executor, info) to use; None: made from ``config``.
        vocabulary: makes the vocabulary for constraints; None: constraints are refused.

    Raises the errors of ``local_executor``, ``make_drafts`` and ``EventPublisher``.
    """

    def __init__(
        self,
        config: Config,
        token_bytes: Sequence[bytes],
        executor: tuple[Executor, EngineInfo] | None = None,
        vocabulary: MakeVocabulary | None = None,
    ) -> None:
        started = SYSTEM_CLOCK.now()
        settings = config.kv_events.settings
        self._publisher = EventPublisher(settings) if settings.enabled else None
        worker, info = executor or local_executor(config)
        drafts, self.info = make_drafts(config, info)
        self.load_seconds = SYSTEM_CLOCK.now() - started
        self._grammars = make_compiler(config, self.info, vocabulary)
        self._engine = EngineCore(
            worker,
            self.info,
            config.schedule,
            token_bytes,
            share=not config.memory.disable_radix_cache,
            seed=config.model.random_seed,
            grammars=self._grammars,
            jumps=config.grammar.jumps,
            drafts=drafts,
        )
        if self._publisher is not None:
            store, name_of = self._engine.store, self._engine.adapters.name
            size = self.info.page_size
            store.tree.watcher = self._publisher.follow(store.retell, size, name_of)
        self._channel = _QueueChannel()
        self._thread = threading.Thread(target=self._run, name="srt-engine", daemon=True)
        self._thread.start()

    def client_on(self, loop: asyncio.AbstractEventLoop) -> Client:
        """Make the engine's only client; call its methods on ``loop``. May be called once."""
        if self._channel.client is not None:
            raise RuntimeError("this engine has a client already")
        client = Client(self.info, self._channel.verbs.put)
        self._channel.loop, self._channel.client = loop, client
        if self._channel.lost is not None:  # the engine ended before it had a client
            client.fail(self._channel.lost)
        return client

    def close(self) -> None:
        """Stop computing; pending requests end with EngineLost."""
        self._channel.verbs.put(None)
        self._thread.join(timeout=30.0)
        if self._publisher is not None:
            self._publisher.close()
        if self._grammars is not None:
            self._grammars.close()

    def _run(self) -> None:
        message = "the engine was shut down"
        try:
            serve(self._engine, self._channel)
        except DeviceLost as error:
            message = f"the device was lost: {error}; start the program again"
        except Exception as error:
            message = f"the engine died: {type(error).__name__}: {error}"
            raise
        finally:
            self._channel.fail(EngineLost(message))
            self._engine.close()
