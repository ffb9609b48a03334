"""Examples in JavaScript: the texts, scores and passes of those in Python."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import javascript
from helpers.inferlet_runs import Main, Programs, embedded_model, example
from helpers.paths import ROOT
from sglang.srt.inferlet.driver import Driver
from sglang.srt.inferlet.host.host_process import HostProcess
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.program_limits import Rights
from sglang.srt.inferlet.sandbox.run_limits import RunLimits
from sglang.srt.inferlet.sandbox.sandbox_driver import SandboxDriver
from sglang.srt.tokenizer.tokenizer import EMBEDDED, Tokenizer

pytestmark = [
    pytest.mark.timeout(300),  # the runner may have to be built
    pytest.mark.skipif(
        not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
    ),
]
PROMPT = "The weather report says that tomorrow will be a fine day for walking along the river,"


class SandboxPrograms(Programs):
    """Runs of texts in JavaScript, in a host of guests."""

    async def _run(self, mains: Sequence[Main], *more: Any) -> list[Any]:
        self.host = HostProcess(1, 1 << 30)
        await self.host.start()
        try:
            return await super()._run(mains, *more)
        finally:
            await self.host.stop()

    def _driver(self, main: Main, session: InferletSession) -> Driver:
        facts = msgspec.json.encode(session.parts.facts).decode()
        image = msgspec.structs.replace(javascript(cast(str, main)), arguments=facts)
        return SandboxDriver(self.host, self.host.launch(image, RunLimits().of_guest(), ""))


class Pair:
    """The same model for programs in both languages."""

    def __init__(self, page_size: int) -> None:
        parts = embedded_model(), Tokenizer(EMBEDDED), page_size
        self.python, self.javascript = Programs(*parts), SandboxPrograms(*parts)

    def play(self, name: str, *arguments: str, **more: Any) -> Any:
        """The value of an example, which is that of both, by the same passes."""
        source: Any = (ROOT / "examples" / "inferlets" / "js" / f"{name}.js").read_text()
        found = self.javascript.one(source, *arguments, **more)
        want = self.python.one(example(name), *arguments, **more)
        assert msgspec.json.encode(found) == msgspec.json.encode(want)
        counts = [(one.passes, one.tokens) for one in (self.javascript, self.python)]
        assert counts[0] == counts[1]
        return found


@pytest.fixture(scope="module", params=[1, 4], ids=["page-1", "page-4"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_text_completion(pair: Pair) -> None:
    assert len(pair.play("text_completion", PROMPT, "12")) > 10


@pytest.mark.parametrize("width", ["2", "3"])
def test_beam_search(pair: Pair, width: str) -> None:
    found = pair.play("beam_search", PROMPT, width, "8")
    assert len(found) == int(width)
    assert all(score < 0 and text for score, text in found)


class Tool(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        [query] = parse_qs(urlsplit(self.path).query).get("q", [""])
        body = f"about {query}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def tool() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_agent_react(pair: Pair, tool: str) -> None:
    arguments = f"http://{tool}/search", "How many legs has a dog?", "3", "10"
    found = pair.play("agent_react", *arguments, rights=Rights(local=(tool,)))
    assert found["calls"] >= 1
    assert "See: about " in found["text"]
    refused = pair.play("agent_react", *arguments)
    assert "See: error denied" in refused["text"]
