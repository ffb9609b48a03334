"""LoadedAdapters: the LoRA adapters that requests may name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.config import LoraConfig
from sglang.srt.core.messages import AdapterInfo, LoadAdapter, UnloadAdapter
from sglang.srt.requests.completion.completer import Completer, EngineLost
from sglang.srt.requests.request_error import RequestError

log = logging.getLogger("sglang.server")

MAX_NAME = 256  # characters
_ANY = ("", "default")  # names that clients of one model send


class LoadedAdapters:
    """The adapters of one engine, by name, each with the time of its loading.

    The engine knows them by numbers; a name reaches it as it is, so one that is unloaded meanwhile
    is refused there. What has been loaded is wanted until it is unloaded, whatever becomes of the
    engine; of another engine it is "restoring" until that one has it too.
    """

    def __init__(self, completion: Completer, settings: LoraConfig, models: set[str]) -> None:
        """``models``: what the model itself is called."""
        self._completion, self._settings = completion, settings
        self._models = {name for name in models if name}
        self._wanted = {adapter.name: (adapter, int(time.time())) for adapter in self._at_start}
        self._restoring: dict[str, asyncio.Task[None]] = {}  # done: its engine was lost
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _at_start(self) -> tuple[AdapterInfo, ...]:
        return self._completion.info.adapters

    @property
    def known(self) -> Mapping[str, tuple[AdapterInfo, int]]:
        """All adapters, also those that are being restored."""
        return self._wanted

    @property
    def loaded(self) -> dict[str, AdapterInfo]:
        return {
            name: info for name, (info, _) in self._wanted.items() if name not in self._restoring
        }

    def of(self, model: str | None = None, lora_path: str | None = None) -> str:
        """The adapter that a request wants, "" for none: by ``lora_path``, by its own name as the
        model, or as ``model:adapter``. Raises RequestError: ``not_found`` for an unknown name,
        ``engine_lost`` for an adapter that is being restored."""
        name = self._named(model or "", lora_path)
        if name in self._restoring:
            raise RequestError(
                f"The engine was started again and is loading the adapter {name!r:.200}; try again "
                "later.",
                code="engine_lost",
            )
        return name

    def _named(self, model: str, lora_path: str | None) -> str:
        named = self._of_model(model)
        if not lora_path:
            return named
        self._verify_on("lora_path")
        if lora_path not in self._wanted:
            raise self._unknown(lora_path, "lora_path")
        if named not in ("", lora_path):
            raise RequestError(
                f"model names the adapter {named!r} and lora_path {lora_path!r}; give one.",
                "lora_path",
            )
        return lora_path

    def _of_model(self, name: str) -> str:
        if not self._completion.info.lora or name in _ANY or name in self._models:
            return ""
        if name in self._wanted:
            return name
        for model in self._models:
            if name.removeprefix(f"{model}:") in self._wanted and name.startswith(f"{model}:"):
                return name.removeprefix(f"{model}:")
        raise self._unknown(name, "model")

    def _unknown(self, name: str, param: str) -> RequestError:
        known = ", ".join(sorted(self.loaded)) or "none"
        return RequestError(
            f"There is no adapter {name!r:.200}; loaded are: {known:.1000}.", param, "not_found"
        )

    def _verify_on(self, param: str) -> None:
        if not self._completion.info.lora:
            raise RequestError(
                "This server has no adapters; start it with --enable-lora or --lora-paths.",
                param,
                "unsupported",
            )

    async def load(
        self, name: str, path: str, pinned: bool = False, trusted: bool = False
    ) -> AdapterInfo:
        """``trusted``: any path will do. Raises RequestError, EngineLost."""
        self._verify_on("lora_name")
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise RequestError(
                f"lora_name must be 1 to {MAX_NAME} printable characters.", "lora_name"
            )
        taken = (self._wanted, self._restoring, self._models, _ANY)
        if any(name in names for names in taken):
            raise RequestError(
                f"lora_name is {name!r}, which is taken; unload that adapter first, or use another "
                "name.",
                "lora_name",
            )
        found = path if trusted else self._allowed(path)
        most = self._completion.info.max_loaded_loras
        if self._restoring and len(self._wanted) >= most:
            raise RequestError(
                f"{most} adapters are loaded or being restored, and no more may be "
                "(--max-loaded-loras).",
                "lora_path",
            )
        info: AdapterInfo = await self._kept(self._load(name, found, pinned))
        return info

    async def _load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        info = await self._ask_load(name, path, pinned)
        self._wanted[name] = info, int(time.time())
        return info

    async def _ask_load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        client = self._completion.client
        reply = await client.ask(lambda number: LoadAdapter(number, name, path, pinned))
        if not reply.ok:
            raise RequestError(f"The adapter was not loaded: {reply.message}", "lora_path")
        return msgspec.convert(reply.data, AdapterInfo)

    async def unload(self, name: str) -> None:
        """New requests do not find it from now on; returns when those that had it have ended, or
        the engine has: the next one will be without it. Raises RequestError."""
        if name not in self._wanted:
            raise self._unknown(name, "lora_name")
        del self._wanted[name]
        restoring = self._restoring.get(name)
        if restoring is None:
            with suppress(EngineLost):
                await self._kept(self._unload(name))
        elif restoring.done():
            del self._restoring[name]
        else:  # the task sees that its adapter is not wanted any more
            await asyncio.wait([restoring])

    async def _unload(self, name: str) -> None:
        client = self._completion.client
        reply = await client.ask(lambda number: UnloadAdapter(number, name))
        if not reply.ok:
            raise RequestError(f"The adapter was not unloaded: {reply.message}.", "lora_name")

    async def _kept(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, which goes on where its caller is gone: the engine has begun
        it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _allowed(self, path: str) -> str:
        """The path of an adapter that a request may load: named at the start, or in ``--lora-dir``.
        The error does not reveal whether there is anything elsewhere."""
        if path in {given for _, given in self._settings.named()}:
            return path
        root = self._settings.lora_dir
        if root and "\0" not in path:
            base = Path(root).expanduser().resolve()
            found = (base / path).resolve()
            if found.is_relative_to(base) and found != base:
                return str(found)
        where = f"inside {root} (--lora-dir)" if root else "named by --lora-paths (no --lora-dir)"
        raise RequestError(
            f"lora_path is {path!r:.200}; a request may load adapters {where} only.", "lora_path",
            "forbidden",
        )  # fmt: skip

    def restore(self) -> None:
        """The engine is another one, which has what is loaded at a start: unload what had gone,
        and load the others again."""
        for task in self._restoring.values():
            task.cancel()
        missing = {
            name: info for name, (info, _) in self._wanted.items() if info not in self._at_start
        }
        kept = self._wanted.keys() - missing.keys()
        gone = [adapter.name for adapter in self._at_start if adapter.name not in kept]
        first = [self._begin(self._unload(name), name) for name in gone]
        self._restoring = {
            name: self._begin(self._restore(name, info, first), name)
            for name, info in missing.items()
        }

    async def restored(self, name: str) -> None:
        """Return when the engine has the adapter again, or it is not to have it."""
        task = self._restoring.get(name)
        if task is not None:
            await asyncio.wait({task})

    async def _restore(
        self, name: str, info: AdapterInfo, first: Sequence[asyncio.Task[None]]
    ) -> None:
        """``first``: what makes room for it. Raises RequestError where the adapter itself is bad,
        which ends it; where this engine is lost too, the next one is to try."""
        if first:
            await asyncio.wait(first)
        try:
            if name in self._wanted:
                found = await self._ask_load(name, info.path, info.pinned)
                if name in self._wanted:
                    self._wanted[name] = found, self._wanted[name][1]
                else:
                    await self._unload(name)
        except RequestError:
            self._wanted.pop(name, None)
            del self._restoring[name]
            raise
        except EngineLost:
            if name in self._wanted:
                return
        del self._restoring[name]

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        async def logged() -> None:
            try:
                await work
            except Exception as error:
                log.error("the adapter %r after the engine's restart: %s", name, error)

        task = asyncio.create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
