"""The HTTP application over a scripted completion, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence

import uvicorn
from helpers.scripted import Scripted, pieces
from sglang.srt.config import Config
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.toolbox.tool_processes import Toolbox
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState


class Paced(Scripted):
    """A scripted completion that may take its time.

    Attributes:
        seconds: between two pieces.
        held: while it is set nothing is written.
        real: the tokens are those of the text and the end token, with log-probabilities.
        cuts: where the text is cut, in place of pieces of one length.
        fault: raised after so many pieces.
        closed: streams that have ended, however.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.seconds, self.real, self.closed = 0.0, False, 0
        self.held = threading.Event()
        self.fault: tuple[int, Exception] | None = None
        self.cuts: Sequence[int] | None = None

    def abort(self, rid: str | None = None, owner: str | None = None) -> int:
        return 0

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        try:
            source = super().run(request)
            if self.real or self.cuts is not None:
                source = (
                    self._tokens(request) if self.cuts is None else self._cut(request, self.cuts)
                )
            async with contextlib.aclosing(source) as outputs:
                count = 0
                async for output in outputs:
                    if self.fault is not None and self.fault[0] == count:
                        raise self.fault[1]
                    count += 1
                    await asyncio.sleep(self.seconds)
                    while self.held.is_set():
                        await asyncio.sleep(0.005)
                    yield output
        finally:
            self.closed += 1

    async def _cut(
        self, request: CompletionRequest, cuts: Sequence[int]
    ) -> AsyncGenerator[Output, None]:
        output = Output(0, RequestStats(prompt_tokens=len(request.prompt)))
        for piece in pieces(self.text, cuts):
            output.text += piece
            output.tokens = list(range(len(output.text)))
            yield output
        output.finish = self.finish
        yield output

    async def _tokens(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        """``piece`` tokens at a time."""
        self.requests.append(request)
        ids = [*self.tokenizer.encode(self.text, False), self.tokenizer.eos_ids[0]]
        decoder = self.tokenizer.detokenizer(request.sampling.skip_special_tokens)
        output = Output(0, RequestStats(prompt_tokens=len(request.prompt)))
        for at in range(0, len(ids), self.piece):
            fresh = ids[at : at + self.piece]
            output.text += decoder.push(fresh)
            output.tokens = output.tokens + fresh
            output.released = decoder.released
            output.logprobs = output.logprobs + [-token / 10 for token in fresh]
            output.tops = output.tops + [[(token, -token / 10)] for token in fresh]
            yield output
        output.text += decoder.finish()
        output.finish = self.finish
        yield output


@contextlib.contextmanager
def serve_scripted(
    completion: Scripted, config: Config | None = None, toolbox: type[Toolbox] | None = None
) -> Iterator[str]:
    """The address of a server on a free port, until the end of the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    made: list[uvicorn.Server] = []
    ready = threading.Event()

    def run() -> None:
        async def main() -> None:
            state = ServerState(config or Config.of(), completion)  # type: ignore[arg-type]
            if toolbox is not None:
                state.toolbox = toolbox(state.config.toolbox, state.metrics.tool_ran)
            options = uvicorn.Config(
                make_app(state), log_config=None, lifespan="off", http="httptools", ws="none",
                timeout_graceful_shutdown=1,
            )  # fmt: skip
            made.append(uvicorn.Server(options))
            ready.set()
            await made[0].serve([listener])

        asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        made[0].should_exit = True
        thread.join(timeout=60)
