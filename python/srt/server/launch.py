"""Launch: bind the port, start the engine process, serve, drain, leave nothing behind.

bound      the port is ours; a port in use ends the launch before a model is read
loading    the engine process reads the model
serving    the first line of standard output is out
draining   after SIGTERM or SIGINT: new requests get 503, open ones may finish
(ended)    by the end of the drain, by a second signal, or because the engine was lost
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from srt.config import Config, add_arguments, from_arguments
from srt.engine.client import EngineLost
from srt.engine.process import EngineProcess, spawn
from srt.program.completion import Completion
from srt.server.accept import calm
from srt.server.admin import probe
from srt.server.app import make_app
from srt.server.service import Service
from srt.tokenizer import Tokenizer, TokenizerError
from srt.tokenizer.chat import ChatTemplateError

log = logging.getLogger("sglang.server")

DRAIN_SECONDS = 30.0  # open requests may take so long after the first signal
CLOSE_SECONDS = 1  # and connections so long to take their last bytes
BACKLOG = 2048


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """Every flag of the server."""
    add_arguments(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sglang.launch_server",
        description="Serve a model over HTTP: OpenAI's routes under /v1, and /generate.",
    )
    add_parser_arguments(parser)
    return run(parser.parse_args(argv), parser)


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Serve as a parsed command line says."""
    try:
        config = from_arguments(arguments)
    except ValueError as error:
        parser.error(str(error))
    logging.basicConfig(
        level=config.server.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    if config.server.log_level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        with _bind(config) as listener:
            return asyncio.run(_serve(config, listener))
    except (OSError, TokenizerError, ChatTemplateError, EngineLost) as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def _bind(config: Config) -> socket.socket:
    """The listening address, taken. Raises OSError, saying what to do."""
    host, port = config.server.host, config.server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --port"
        ) from error
    return listener


async def _serve(config: Config, listener: socket.socket) -> int:
    calm(asyncio.get_running_loop())
    signals = _Signals()
    with signals.installed():
        tokenizer = Tokenizer.load(
            config.model.tokenizer_path or config.model.model_path,
            config.model.revision,
            config.server.chat_template,
        )
        engine = await spawn(config, tokenizer.token_bytes)
        try:
            signals.kill = engine.kill
            service = Service(config, Completion(engine.client, tokenizer))
            if not config.server.skip_server_warmup:
                await probe(service)
            return await _Server(service, engine, listener, signals).run()
        finally:
            await engine.stop()


def _nothing() -> None:
    pass


class _Signals:
    """The first signal asks (or, while loading, cancels); the second ends the process at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.serving = False
        self.kill: Callable[[], None] = _nothing
        self._task = asyncio.current_task()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on(self, number: int) -> None:
        if self.asked.is_set():
            self.kill()
            os._exit(128 + number)
        self.asked.set()
        if not self.serving and self._task is not None:
            self._task.cancel()


class _Server(uvicorn.Server):
    """uvicorn, with this module's signals, first line and end."""

    def __init__(
        self, service: Service, engine: EngineProcess, listener: socket.socket, signals: _Signals
    ) -> None:
        options = uvicorn.Config(
            make_app(service),
            loop="asyncio",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=service.config.server.log_requests,
            backlog=BACKLOG,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            server_header=False,
        )
        super().__init__(options)
        self._service, self._engine, self._listener = service, engine, listener
        self._signals, self._code = signals, 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals are this module's own."""
        yield

    async def run(self) -> int:  # type: ignore[override]
        """Serve to the end; the exit code."""
        self._signals.serving = True
        ends = [asyncio.ensure_future(end) for end in (self._on_signal(), self._on_loss())]
        try:
            await self.serve([self._listener])
        except SystemExit as error:  # uvicorn could not listen
            raise OSError("cannot listen: the port was taken meanwhile") from error
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        return self._code

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        info, name = self._service.info, self._service.model_name
        print(f"sglang serving {name} at {self._url()} - {info.capacity} KV tokens", flush=True)

    def _url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def _on_signal(self) -> None:
        await self._signals.asked.wait()
        service = self._service
        service.draining = True
        log.info("draining %d requests; a second signal exits at once", service.open_requests)
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while service.open_requests and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        service.completion.abort()
        self.should_exit = True

    async def _on_loss(self) -> None:
        lost = await self._engine.wait_lost()
        log.error("%s; the server exits", lost)
        self._code = 1
        self._service.draining = True
        self.should_exit = True
