"""Start of a server's sandbox for inferlets, and the controller of the current engine."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sglang.srt.config import InferletsConfig
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.host.host_process import HostProcess
from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT
from sglang.srt.inferlet.host.runner_build import ToolchainMissing, build, prebuilt
from sglang.srt.inferlet.leases import Leases
from sglang.srt.inferlet.mail import Topics
from sglang.srt.inferlet.program_store import ProgramStore
from sglang.srt.inferlet.sandbox.program_sandbox import ProgramSandbox
from sglang.srt.inferlet.sandbox.uploads import Language, Uploads
from sglang.srt.inferlet.served import Served
from sglang.srt.requests.completion.completer import Completer, EngineLost
from sglang.srt.web.server_state import ServerState

log = logging.getLogger("sglang.server")
GIGABYTE = 10**9


class CurrentController:
    """Provider of the controller of the current engine. A restarted engine gets a new controller;
    topics and stored values are kept."""

    def __init__(self, completion: Completer) -> None:
        self._completion = completion
        self._topics, self._store = Topics(), ProgramStore()
        self._controller: Controller | None = None

    def __call__(self) -> Controller:
        """Return the controller of the current engine. Raises EngineLost."""
        clients = self._completion.engines.clients
        if not clients:
            raise self._completion.lost or EngineLost("no engine serves now")
        client, controller = clients[0], self._controller
        if controller is None or controller.served.link is not client:
            served = Served(
                client, client.info, self._completion.tokenizer, Leases(_nobody),
                self._topics, self._store,
            )  # fmt: skip
            controller = self._controller = Controller(served)
        return controller


async def _nobody(body: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("a lease belongs to a run")


@asynccontextmanager
async def sandbox_of(state: ServerState, config: InferletsConfig) -> AsyncIterator[None]:
    """Run the server's sandbox during the block, if the configuration enables it.

    Raises ValueError if wasmtime is missing, OSError if the host process cannot be started.
    """
    if not config.enable_inferlets:
        yield
        return
    if importlib.util.find_spec("wasmtime") is None:
        raise ValueError(
            "--enable-inferlets needs wasmtime, which is not installed; install it by: pip install "
            "wasmtime componentize-py"
        )
    found = await _runners()
    host = HostProcess(config.inferlet_threads, int(config.inferlet_memory * GIGABYTE))
    log.info("the sandbox of inferlets runs on wasmtime %s", await host.start())
    uploads = Uploads(config.inferlet_max_programs)
    controller = CurrentController(state.runtime.completion)
    sandbox = ProgramSandbox(controller, host, uploads, found, config.inferlet_max_runs)
    state.inferlets = sandbox
    try:
        yield
    finally:
        state.inferlets = None
        sandbox.close()
        await host.stop()


async def _runners() -> dict[Language, Path]:
    """Return the runners by language. A missing runner of Python is built now, if possible. The
    runner of JavaScript must be built by the operator, because its build downloads packages."""
    found: dict[Language, Path] = {}
    try:
        if (path := prebuilt()) is None:
            log.info("the runner of programs in Python is being built, once; half a minute or more")
            path = await asyncio.to_thread(build)
        found["python"] = path
    except (ToolchainMissing, RuntimeError) as error:
        log.warning("programs in Python cannot run: %s", error)
    if (path := prebuilt(recipe=JAVASCRIPT)) is None:
        log.info("programs in JavaScript cannot run; `sglang inferlet runner` builds their runner")
    else:
        found["javascript"] = path
    return found
