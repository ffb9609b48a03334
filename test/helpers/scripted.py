"""A Completion that answers with scripted texts, and the HTTP application over it, in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import httpx
from sglang.srt.config import Config
from sglang.srt.core.ints import Ints
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.encoder import Encoder
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.requests.completion.serving_engines import OneEngine
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState


class Scripted:
    """Every completion writes ``text``, ``piece`` characters at a time, and ends as ``finish``.

    Attributes:
        requests: verified, in order.
        prompts: texts that were to be tokenized.
        tokens: ids of a finished completion; None for one a character.
        refuse: an error that the engine answers with.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.encoder = tokenizer, Encoder(tokenizer)
        self.info = EngineInfo(
            model_path="toy", architecture="Toy", dtype="none", device="none",
            vocab_size=tokenizer.vocab_size, context_length=4096, capacity=4096, page_size=1,
            max_running_requests=8, max_queued_requests=8, eos=tokenizer.eos_ids,
        )  # fmt: skip
        self.text, self.piece, self.finish = "", 5, Finish("stop")
        self.tokens: list[int] | None = None
        self.refuse: RequestError | None = None
        self.requests: list[CompletionRequest] = []
        self.prompts: list[str] = []
        self.pending, self.lost = 0, None
        self.engines = OneEngine(Client(self.info, lambda verbs: None))  # drops all verbs

    async def encode_prompt(self, text: str, add_special_tokens: bool = True) -> Ints:
        self.prompts.append(text)
        return self.tokenizer.encode(text, add_special_tokens)

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        for index in range(request.sampling.n):
            output = Output(index, RequestStats(prompt_tokens=len(request.prompt)))
            for at in range(0, len(self.text), self.piece):
                output.text = self.text[: at + self.piece]
                output.tokens = list(range(len(output.text)))
                await asyncio.sleep(0)
                yield output
            if self.tokens is not None:
                output.tokens = self.tokens
            output.finish = self.finish
            yield output


def posted(
    completion: Scripted, path: str, body: dict[str, Any], config: Config | None = None
) -> httpx.Response:
    """The application's answer."""
    app = make_app(ServerState(config or Config.of(), completion))  # type: ignore[arg-type]

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    return asyncio.run(post())


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text cut at these indices."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]
