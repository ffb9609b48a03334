"""LoadedAdapters: the LoRA adapters that requests may name."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sglang.srt.config import LoraConfig
from sglang.srt.core.messages import AdapterInfo, LoadAdapter, UnloadAdapter
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.request_error import RequestError

log = logging.getLogger("sglang.server")

MAX_NAME = 256  # characters
_ANY = ("", "default")  # names that clients of one model send


class LoadedAdapters:
    """The adapters of all engines by name, each with the time of its loading.

    Requests name adapters in verbs to the engine, so the engine refuses a name that was unloaded
    meanwhile. A loaded adapter stays "wanted" until it is unloaded, even if an engine is lost. On
    the engine that replaces a lost one, the adapter is "restoring" until it is loaded there.
    """

    def __init__(self, completion: Completer, settings: LoraConfig, models: set[str]) -> None:
        """``models``: names of the model itself."""
        self._completion, self._settings = completion, settings
        self._models = {name for name in models if name}
        self._wanted = {adapter.name: (adapter, int(time.time())) for adapter in self._at_start}
        # Tasks by engine and adapter. A done task that is still here: its engine was lost.
        self._restoring: dict[Client, dict[str, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _at_start(self) -> tuple[AdapterInfo, ...]:
        return self._completion.info.adapters

    @property
    def known(self) -> Mapping[str, tuple[AdapterInfo, int]]:
        """All wanted adapters, also the ones that are being restored."""
        return self._wanted

    @property
    def loaded(self) -> dict[str, AdapterInfo]:
        """The adapters that are loaded on at least one engine."""
        return {name: info for name, (info, _) in self._wanted.items() if self._somewhere(name)}

    def has(self, client: Client, name: str) -> bool:
        """Whether an engine need not wait for the adapter: it has the adapter, or should not have
        it."""
        return name not in self._restoring.get(client, ())

    def _somewhere(self, name: str) -> bool:
        """Whether at least one engine does not have to restore the adapter first."""
        if not self._restoring:
            return True
        clients = self._completion.engines.clients
        return any(self.has(client, name) for client in clients or self._restoring)

    def of(self, model: str | None = None, lora_path: str | None = None) -> str:
        """Return the adapter that a request names, or "". The request gives it as ``lora_path``, or
        as ``model``: the adapter's name alone or ``model:adapter``. Raises RequestError:
        ``not_found`` for an unknown name, ``engine_lost`` for an adapter that is being restored."""
        name = self._named(model or "", lora_path)
        if name and not self._somewhere(name):
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
        """Load an adapter on all engines and return its facts. ``trusted``: any path is allowed.
        Raises RequestError and EngineLost."""
        self._verify_on("lora_name")
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise RequestError(
                f"lora_name must be 1 to {MAX_NAME} printable characters.", "lora_name"
            )
        restoring = [each for tasks in self._restoring.values() for each in tasks]
        taken = (self._wanted, restoring, self._models, _ANY)
        if any(name in names for names in taken):
            raise RequestError(
                f"lora_name is {name!r}, which is taken; unload that adapter first, or use another "
                "name.",
                "lora_name",
            )
        found = path if trusted else self._allowed(path)
        most = self._completion.info.max_loaded_loras
        if restoring and len(self._wanted) >= most:
            raise RequestError(
                f"{most} adapters are loaded or being restored, and no more may be "
                "(--max-loaded-loras).",
                "lora_path",
            )
        info: AdapterInfo = await self._kept(self._load(name, found, pinned))
        return info

    async def _load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        """Load an adapter on every engine, also on engines that are started meanwhile. If one
        engine refuses it, unload it on the others."""
        having: dict[Client, AdapterInfo] = {}
        while True:
            asked = [c for c in self._completion.engines.clients if c not in having]
            if not asked and having:
                break
            loads = (self._ask_load(client, name, path, pinned) for client in asked)
            found = await asyncio.gather(*loads, return_exceptions=True)
            having |= {c: info for c, info in zip(asked, found) if isinstance(info, AdapterInfo)}
            errors = [error for error in found if isinstance(error, BaseException)]
            refusals = [error for error in errors if not isinstance(error, EngineLost)]
            if refusals or (errors and not having) or not asked:
                await self._undo(list(having), name)
                raise (refusals or errors or [self._no_engine()])[0]
        info = next(iter(having.values()))
        self._wanted[name] = info, int(time.time())
        return info

    async def _undo(self, clients: Sequence[Client], name: str) -> None:
        """Unload an adapter that another engine has refused to load."""
        try:
            await self._unload_on(clients, name)
        except RequestError as error:
            log.error(
                "adapter %r, which one engine refused, cannot be unloaded: %s", name, error.message
            )

    def _no_engine(self) -> EngineLost:
        return (self._completion.lost or EngineLost("there is no engine")).again()

    async def _ask_load(self, client: Client, name: str, path: str, pinned: bool) -> AdapterInfo:
        reply = await client.ask(lambda number: LoadAdapter(number, name, path, pinned))
        if not reply.ok:
            raise RequestError(f"The adapter was not loaded: {reply.message}", "lora_path")
        return msgspec.convert(reply.data, AdapterInfo)

    async def unload(self, name: str) -> None:
        """Unload an adapter: new requests cannot name it from now on. Return when the requests that
        use it have ended, or their engines are lost. Raises RequestError."""
        if name not in self._wanted:
            raise self._unknown(name, "lora_name")
        del self._wanted[name]
        clients = self._completion.engines.clients
        restoring = [tasks[name] for tasks in self._restoring.values() if name in tasks]
        having = [client for client in clients if self.has(client, name)]
        for tasks in self._restoring.values():
            if name in tasks and tasks[name].done():
                del tasks[name]
        if having:
            await self._kept(self._unload_on(having, name))
        if pending := [task for task in restoring if not task.done()]:
            await asyncio.wait(pending)  # each restoration sees that the adapter is not wanted

    async def _unload_on(self, clients: Sequence[Client], name: str) -> None:
        """Unload an adapter on these engines. An engine that is lost meanwhile counts as unloaded.
        Raises RequestError."""
        unloads = (self._unload(client, name) for client in clients)
        for error in await asyncio.gather(*unloads, return_exceptions=True):
            if error is not None and not isinstance(error, EngineLost):
                raise error

    async def _unload(self, client: Client, name: str) -> None:
        reply = await client.ask(lambda number: UnloadAdapter(number, name))
        if not reply.ok:
            raise RequestError(f"The adapter was not unloaded: {reply.message}.", "lora_name")

    async def _kept(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of ``work``. The work continues if this call is cancelled, because the
        engine has begun it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _allowed(self, path: str) -> str:
        """Return the path of an adapter that a request may load: one given at the start, or one
        inside ``--lora-dir``. Raises RequestError for others, whether or not they exist."""
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

    def restore(self, client: Client) -> None:
        """Bring the engine of ``client``, which replaces a lost one, to the wanted adapters. The
        engine has those of its start: unload the ones that are not wanted, load the missing
        ones."""
        clients = self._completion.engines.clients
        for lost in [other for other in self._restoring if other not in clients]:
            for task in self._restoring.pop(lost).values():
                task.cancel()
        missing = {
            name: info for name, (info, _) in self._wanted.items() if info not in self._at_start
        }
        kept = self._wanted.keys() - missing.keys()
        gone = [adapter.name for adapter in self._at_start if adapter.name not in kept]
        first = [self._begin(self._unload(client, name), name) for name in gone]
        self._restoring[client] = {
            name: self._begin(self._restore(client, name, info, first), name)
            for name, info in missing.items()
        }

    async def restored(self, client: Client, name: str) -> None:
        """Return when the engine has the adapter again, should not have it, or is lost."""
        task = self._restoring.get(client, {}).get(name)
        if task is not None:
            await asyncio.wait({task})

    async def _restore(
        self, client: Client, name: str, info: AdapterInfo, first: Sequence[asyncio.Task[None]]
    ) -> None:
        """Load a wanted adapter on the engine of ``client``, after ``first``: unloads that make
        room. If this engine is lost too, its successor tries again. Raises RequestError if the
        adapter cannot be loaded; it is then unloaded on all engines."""
        if first:
            await asyncio.wait(first)
        restoring = self._restoring[client]
        try:
            if name in self._wanted:
                found = await self._ask_load(client, name, info.path, info.pinned)
                if name in self._wanted:
                    self._wanted[name] = found, self._wanted[name][1]
                else:
                    await self._unload(client, name)
        except EngineLost:
            if name in self._wanted:
                return
        except Exception:
            self._wanted.pop(name, None)
            del restoring[name]
            clients = self._completion.engines.clients
            others = [other for other in clients if other is not client and self.has(other, name)]
            await self._undo(others, name)
            raise
        del restoring[name]

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        async def logged() -> None:
            try:
                await work
            except Exception as error:
                log.error("adapter %r cannot be loaded after the engine's restart: %s", name, error)

        task = asyncio.create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
