"""AdapterRegistry: the adapters (LoRA) of an engine by name. States of an adapter:

    loading    a thread reads the weights; requests cannot use the name yet
    loaded     contexts may be opened with the adapter
    leaving    the name is removed; the adapter is unloaded when no open context uses it

Each loading gets a new number, even under an old name, so that KV of an earlier one never matches.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
from sglang.srt.core.messages import AdapterInfo, LoadAdapter, Reply, UnloadAdapter
from sglang.srt.engine.executor import Executor
from sglang.srt.engine.info import FIRST_ADAPTER, EngineInfo
from sglang.srt.memory.store import Store

UNKNOWN = -1  # number returned for a name without an adapter


class _Loading(NamedTuple):
    verb: LoadAdapter
    number: int
    facts: Future[dict[str, Any]]


class _Leaving(NamedTuple):
    verb: UnloadAdapter
    number: int


class AdapterRegistry:
    """Adapters of one engine, by name. ``settle`` returns the late replies to verbs."""

    def __init__(self, executor: Executor, info: EngineInfo, store: Store) -> None:
        self._executor, self._store, self._info = executor, store, info
        self._numbers: dict[str, int] = {}
        self._loaded: dict[int, AdapterInfo] = {}  # by number, leaving adapters included
        for number, adapter in enumerate(info.adapters, FIRST_ADAPTER):
            self._numbers[adapter.name], self._loaded[number] = number, adapter
        self._next = FIRST_ADAPTER + len(info.adapters)
        self._loading: list[_Loading] = []
        self._leaving: list[_Leaving] = []
        self._thread: ThreadPoolExecutor | None = None

    @property
    def pending(self) -> int:
        """Number of verbs without a reply, which ``settle`` will return."""
        return len(self._loading) + len(self._leaving)

    def number(self, name: str) -> int:
        """Return the number of the adapter ``name``; ``UNKNOWN`` if not loaded; 0 for ""."""
        return self._numbers.get(name, UNKNOWN) if name else 0

    def name(self, number: int) -> str:
        """Return the name of the adapter with this number; "" if it is not loaded."""
        adapter = self._loaded.get(number)
        return "" if adapter is None else adapter.name

    @property
    def counts(self) -> dict[str, int]:
        size = sum(adapter.bytes for adapter in self._loaded.values())
        return {"adapters": len(self._loaded), "adapter_bytes": size}

    def load(self, verb: LoadAdapter) -> Reply | None:
        """Begin to load an adapter. Return None, or the reply of a refusal."""
        if refusal := self._refusal(verb):
            return Reply(verb.id, False, refusal)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="srt-adapters")
        number, self._next = self._next, self._next + 1
        facts = self._thread.submit(self._executor.load_adapter, number, verb.path, verb.pinned)
        self._loading.append(_Loading(verb, number, facts))
        return None

    def _refusal(self, verb: LoadAdapter) -> str:
        if not self._info.lora:
            return "adapters are off; start with --enable-lora"
        names = [loading.verb.name for loading in self._loading]
        if not verb.name or verb.name in self._numbers or verb.name in names:
            return f"an adapter {verb.name!r} is loaded already; unload it first"
        count, most = len(self._loaded) + len(self._loading), self._info.max_loaded_loras
        if count >= most:
            return f"{count} adapters are loaded and {most} may be (--max-loaded-loras)"
        return ""

    def unload(self, verb: UnloadAdapter) -> Reply | None:
        """Begin to unload an adapter; its name is removed now. Return None, or a refusal."""
        number = self._numbers.pop(verb.name, UNKNOWN)
        if number == UNKNOWN:
            return Reply(verb.id, False, f"no adapter {verb.name!r} is loaded")
        self._leaving.append(_Leaving(verb, number))
        return None

    def settle(self) -> list[Reply]:
        """Unload leaving adapters without users. Return replies for ended loads and for these."""
        done = [loading for loading in self._loading if loading.facts.done()]
        self._loading = [loading for loading in self._loading if loading not in done]
        replies = [self._settled(loading) for loading in done]
        if self._leaving:
            used = {context.namespace.adapter for context in self._store.contexts.values()}
            used |= set() if self._store.holder is None else self._store.holder.adapters
            gone = [leaving for leaving in self._leaving if leaving.number not in used]
            self._leaving = [leaving for leaving in self._leaving if leaving.number in used]
            replies += map(self._gone, gone)
        return replies

    def _settled(self, loading: _Loading) -> Reply:
        verb = loading.verb
        try:
            facts = loading.facts.result()
        except Exception as error:
            message = str(error) if isinstance(error, (ValueError, MemoryError)) else repr(error)
            return Reply(verb.id, False, message)
        info = AdapterInfo(name=verb.name, path=verb.path, pinned=verb.pinned, **facts)
        self._numbers[verb.name], self._loaded[loading.number] = loading.number, info
        return Reply(verb.id, data=msgspec.to_builtins(info))

    def _gone(self, leaving: _Leaving) -> Reply:
        self._executor.unload_adapter(leaving.number)
        del self._loaded[leaving.number]
        tokens = self._store.drop_adapter(leaving.number)
        return Reply(leaving.verb.id, data={"tokens": tokens})

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
