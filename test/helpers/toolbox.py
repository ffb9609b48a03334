"""A toolbox whose functions run in the process of the test, and a model that calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from helpers.scripted_server import Paced
from sglang.srt.config import ToolboxConfig
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.toolbox.tool_definitions import definition_of
from sglang.srt.runtime.toolbox.tool_processes import Ran, Toolbox, ToolResult
from sglang.srt.tokenizer import Tokenizer


def add(a: int, b: int) -> int:
    """Sum."""
    return a + b


def fail() -> None:
    raise KeyError("lost")


def wait() -> None: ...


class InProcess(Toolbox):
    """A toolbox that runs its functions here."""

    def __init__(self, config: ToolboxConfig, ran: Ran) -> None:
        super().__init__(config, ran)
        self.functions: dict[str, Callable[..., Any]] = {"add": add, "fail": fail, "wait": wait}
        self.tools = {name: definition_of(f) for name, f in self.functions.items()}
        self.cancelled, self.begun = 0, asyncio.Event()

    async def _call(self, name: str, arguments: str) -> ToolResult:
        try:
            if name == "wait":
                await self._wait()
            return ToolResult(str(self.functions[name](**json.loads(arguments))))
        except KeyError as error:
            return ToolResult(f"Error: {error}", True)

    async def _wait(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Turns(Paced):
    """A model whose n-th turn writes the n-th text; the last one again and again."""

    def __init__(self, tokenizer: Tokenizer, *texts: str) -> None:
        super().__init__(tokenizer)
        self.texts = texts

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        self.text = self.texts[min(len(self.requests), len(self.texts) - 1)]
        async with aclosing(super().run(request)) as outputs:
            async for output in outputs:
                yield output


def called(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"
