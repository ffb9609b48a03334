"""GuestPair: the examples of inferlets in Python, and the same in a language of the sandbox."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from helpers.inferlet_runs import Main, Programs, embedded_model, example
from sglang.srt.inferlet.driver import Driver
from sglang.srt.inferlet.host.host_messages import GuestImage
from sglang.srt.inferlet.host.host_process import HostProcess
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.sandbox.run_limits import RunLimits
from sglang.srt.inferlet.sandbox.sandbox_driver import SandboxDriver
from sglang.srt.tokenizer.tokenizer import EMBEDDED, Tokenizer

PROMPT = "The weather report says that tomorrow will be a fine day for walking along the river,"
LEGS = "How many legs has a dog?"
NO_MODEL = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


class SandboxPrograms(Programs):
    """Runs of programs in a host of guests; ``main`` is the name of one for ``image``."""

    def __init__(self, image: Callable[[Any], GuestImage], *parts: Any) -> None:
        super().__init__(*parts)
        self._image = image

    async def _run(self, mains: Sequence[Main], *more: Any) -> list[Any]:
        self.host = HostProcess(1, 1 << 30)
        await self.host.start()
        try:
            return await super()._run(mains, *more)
        finally:
            await self.host.stop()

    def _driver(self, main: Main, session: InferletSession) -> Driver:
        facts = msgspec.json.encode(session.parts.facts).decode()
        image = msgspec.structs.replace(self._image(main), arguments=facts)
        return SandboxDriver(self.host, self.host.launch(image, RunLimits().of_guest(), ""))


class GuestPair:
    """The same model for programs in both languages. ``image``: of an example, by its name."""

    def __init__(self, page_size: int, image: Callable[[Any], GuestImage]) -> None:
        parts = embedded_model(), Tokenizer(EMBEDDED), page_size
        self.python, self.guest = Programs(*parts), SandboxPrograms(image, *parts)

    def play(self, name: Any, *arguments: str, exact: bool = True, **more: Any) -> Any:
        """The value of an example, which is that of both, by no more passes. Without ``exact`` the
        scores of its texts may differ in the seventh digit, and it may take more passes."""
        found = self.guest.one(name, *arguments, **more)
        want = self.python.one(example(name), *arguments, **more)
        if exact or not isinstance(want, list):
            assert msgspec.json.encode(found) == msgspec.json.encode(want)
        else:
            assert [text for _, text in found] == [text for _, text in want]
            assert [one for one, _ in found] == pytest.approx([one for one, _ in want], abs=1e-6)
        assert self.guest.tokens == self.python.tokens
        assert self.guest.passes <= self.python.passes or not exact
        return found


class Tool(http.server.BaseHTTPRequestHandler):
    """A tool that knows something of every word."""

    def do_GET(self) -> None:
        [query] = parse_qs(urlsplit(self.path).query).get("q", [""])
        body = f"about {query}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def tool_server() -> Iterator[str]:
    """The address of a ``Tool``."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
