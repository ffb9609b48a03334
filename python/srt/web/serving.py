"""Serving: runs the server, from a bound port and a starting engine to the end of the drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

import uvicorn
from sglang.srt.config import Config
from sglang.srt.config.listening import exposed, tls_options
from sglang.srt.core.version import __version__
from sglang.srt.engine.process import Started
from sglang.srt.runtime.crash_dump import crash_dumps
from sglang.srt.runtime.fleet.engine_fleet import Fleet
from sglang.srt.runtime.fleet.fleet_setup import completer_on, connector, fleet_of, supervisors
from sglang.srt.runtime.fleet.members import Members
from sglang.srt.runtime.toolbox.tool_processes import Toolbox
from sglang.srt.system.processes import when_orphaned
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.batch_api.batch_setup import batches_of
from sglang.srt.web.connection.accept import allow_connections, calm
from sglang.srt.web.connection.protocol import protocol
from sglang.srt.web.inferlet_api.sandbox_setup import sandbox_of
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry.request_tracing import connect

log = logging.getLogger("sglang.server")

CLOSE_SECONDS = 1  # seconds that connections have after the drain to receive their last bytes
BACKLOG = 2048
GARBAGE = 20_000  # new objects between two collections; one request creates thousands


async def serve(config: Config, listener: socket.socket, engines: Mapping[str, Started]) -> int:
    """Serve until a signal. Return the exit code.

    Raises OSError, EngineLost, and the errors of loading a tokenizer, a chat template, media
    processing, tracing, or the module of tools.
    """
    allow_connections()
    calm(asyncio.get_running_loop())
    signals = _Signals()
    signals.kill = partial(_kill, engines)
    try:
        return await _serve(config, listener, engines, signals)
    except asyncio.CancelledError:
        if not signals.draining.is_set():
            raise
        return 128 + signals.number  # the signal came while the model was being loaded


async def _serve(
    config: Config, listener: socket.socket, engines: Mapping[str, Started], signals: _Signals
) -> int:
    parent = config.operations.exit_with_parent
    async with signals.installed():
        if parent:
            when_orphaned(parent, partial(signals.orphaned, asyncio.get_running_loop(), parent))
        if config.edge.api_keys_file:  # SIGHUP is ignored until the model is loaded
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _nothing)
        tokenizer = Tokenizer.load(
            config.model.tokenizer_path or config.model.model_path,
            config.model.revision,
            config.server.chat_template,
        )
        members = Members(supervisors(config, tokenizer))
        signals.kill = members.kill
        endpoint = config.operations.otlp_traces_endpoint
        tracing = connect(endpoint) if endpoint else None
        toolbox: Toolbox | None = None
        try:
            await members.start(engines)
            fleet = fleet_of(config, members)
            fleet.connect = connector(config, tokenizer)
            completer = completer_on(fleet, config, tokenizer)
            state = ServerState(config, completer)
            state.tracing, fleet.changed = tracing, state.engine_changed
            state.fleet = fleet
            fleet.resumed = state.metrics.engine.resumed
            fleet.adapters = state.runtime.adapters
            if config.toolbox.toolbox:
                toolbox = state.toolbox = Toolbox(config.toolbox, state.metrics.tool_ran)
                await toolbox.start()
            async with (
                sandbox_of(state, config.inferlets),
                batches_of(state, config.batches),
                crash_dumps(completer.resume_order, config),
            ):
                return await _Server(state, fleet, listener, signals).run()
        finally:
            if toolbox is not None:
                await toolbox.close()
            await members.stop()
            if tracing is not None:
                tracing.close()


def _nothing() -> None:
    pass


def _kill(engines: Mapping[str, Started]) -> None:
    for engine in engines.values():
        engine.kill()


class _Signals:
    """Signal handling. The first signal begins the drain, or cancels the loading of the model. The
    second signal ends the process at once."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.number = int(signal.SIGTERM)  # the first signal's
        self.serving = False
        self.kill: Callable[[], None] = _nothing
        self._task = asyncio.current_task()

    @contextlib.asynccontextmanager
    async def installed(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _on(self, number: int) -> None:
        if self.draining.is_set():
            self.kill()
            os._exit(128 + number)
        self.number = number
        self.drain()

    def orphaned(self, loop: asyncio.AbstractEventLoop, parent: int) -> None:
        """Begin the drain, as process ``parent`` has ended. Called in another thread."""
        log.warning("process %d (--exit-with-parent) has ended; the server drains", parent)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended too
            loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Begin the drain."""
        self.draining.set()
        if not self.serving and self._task is not None:
            self._task.cancel()


class _Server(uvicorn.Server):
    """uvicorn's server with this module's signal handling, first output line and shutdown."""

    def __init__(
        self, state: ServerState, fleet: Fleet, listener: socket.socket, signals: _Signals
    ) -> None:
        options = uvicorn.Config(
            make_app(state),
            loop="asyncio",
            http=protocol(state.config.edge),
            timeout_keep_alive=state.config.edge.keep_alive_timeout,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            server_header=False,
            **tls_options(state.config.edge),
        )
        super().__init__(options)
        self._state, self._fleet, self._listener = state, fleet, listener
        self._signals, self._code = signals, 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because ``_Signals`` handles the signals."""
        yield

    async def run(self) -> int:  # type: ignore[override]
        """Serve to the end. Return the exit code."""
        self._signals.serving = True
        if self._state.config.edge.api_keys_file:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        ends = [asyncio.ensure_future(end) for end in (self._on_signal(), self._on_loss())]
        try:
            await self.serve([self._listener])
        except SystemExit as error:  # uvicorn failed to listen
            raise OSError("cannot listen: the port was taken meanwhile") from error
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        return self._code

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # exclude all present objects from later collections
        gc.set_threshold(GARBAGE)
        info, name = self._state.runtime.info, self._state.runtime.model_name
        log.info("%s", _facts(self._state))
        if exposed(address := self._listener.getsockname()[0], self._state.config):
            log.warning(
                "the server listens on %s without an API key: every client that reaches this "
                "machine can use it; set SGLANG_API_KEY, or --host 127.0.0.1", address,
            )  # fmt: skip
        print(f"sglang serving {name} at {self._url()} - {info.capacity} KV tokens", flush=True)

    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        scheme = "https" if self._state.config.edge.ssl_certfile else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def _reload(self) -> None:
        try:
            self._state.tenants.reload()
            log.info("the API keys were read again")
        except (OSError, ValueError) as error:
            log.error("the API keys stay as they were: %s", error)

    async def _on_signal(self) -> None:
        await self._signals.draining.wait()
        log.info("the server ends with its open requests; a second signal exits at once")
        self._state.drain.begin()
        await self._state.drain.over.wait()
        self._state.programs.sessions.close_all()
        self._state.runtime.abort()  # ends responses in the background
        self.should_exit = True

    async def _on_loss(self) -> None:
        try:
            lost = await self._fleet.run()
            log.error("%s; the server exits", lost)
        except Exception:
            log.exception("monitoring the engines failed; the server exits")
        self._code = 1
        self._state.drain.begin()
        self.should_exit = True


def _facts(state: ServerState) -> str:
    """Return the effective settings in one line, for the log."""
    info, tokenizer, tenants = state.runtime.info, state.runtime.tokenizer, state.tenants
    form = type(state.runtime.tool_format).__name__.lower()
    thoughts = "read apart" if state.runtime.thought_marks is not None else "not read apart"
    keys = "required" if tenants.required else "for the admin alone" if tenants.guarded else "none"
    return (
        f"sglang {__version__}: {info.model_path} ({info.architecture}, {info.parameters} "
        f"parameters), {info.dtype} on {info.device}, context {info.context_length}, chat template "
        f"{'none' if tokenizer.chat_template is None else 'present'}, tool calls {form}, thoughts "
        f"{thoughts}, keys {keys}, TLS {'on' if state.config.edge.ssl_certfile else 'off'}"
    )
