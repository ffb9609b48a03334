"""LiteLLM against a small stand-in for the ``litellm`` package."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest
from sglang import errors
from sglang.backend.base import Prompt
from sglang.backend.litellm import LiteLLM
from sglang.ir.choices import token_length_normalized
from sglang.ir.params import DEFAULTS

PROMPT = Prompt("Say", ({"role": "user", "content": "Say"},))
USAGE = {"prompt_tokens": 1, "completion_tokens": 2}


class Dumped(dict[str, Any]):
    """An object of ``litellm``: all that is used of it."""

    def model_dump(self) -> dict[str, Any]:
        return dict(self)


class APITimeoutError(Exception):
    """Stands in for the package's own timeout, which derives from the openai client's."""

    status_code = 408


class Package(ModuleType):
    """Keeps the arguments; answers with ``text`` or raises it."""

    def __init__(self) -> None:
        super().__init__("litellm")
        self.calls: list[dict[str, Any]] = []
        self.text: Any = "one two"

    def completion(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self.text, Exception):
            raise self.text
        return self._chunks() if arguments.get("stream") else self._reply()

    async def acompletion(self, **arguments: Any) -> Any:
        reply = self.completion(**arguments)
        return self._achunks(reply) if arguments.get("stream") else reply

    def _reply(self) -> Dumped:
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": self.text}}
        return Dumped(id="x", choices=[choice], usage=USAGE)

    def _chunks(self) -> Iterator[Dumped]:
        for piece in self.text.partition(" "):
            yield Dumped(choices=[{"delta": {"content": piece}, "finish_reason": None}])
        yield Dumped(choices=[{"delta": {}, "finish_reason": "stop"}], usage=USAGE)

    async def _achunks(self, chunks: Iterator[Dumped]) -> AsyncIterator[Dumped]:
        for chunk in chunks:
            yield chunk


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    package = Package()
    monkeypatch.setitem(sys.modules, "litellm", package)
    return package


def test_calls_in_all_four_ways(package: Package) -> None:
    backend = LiteLLM("groq/llama", api_key="k", timeout=5, metadata={"a": 1})

    async def in_a_loop() -> list[Any]:
        (whole,) = await backend.acomplete(PROMPT, DEFAULTS)
        return [whole, *[part async for part in backend.astream(PROMPT, DEFAULTS)]]

    parts = [*backend.complete(PROMPT, DEFAULTS), *backend.stream(PROMPT, DEFAULTS)]
    assert parts == asyncio.run(in_a_loop())
    assert [part.text for part in parts] == ["one two", "one", "one ", "one two", "one two"]
    assert parts[-1].meta["finish_reason"] == {"type": "stop", "matched": None}
    assert backend.token_usage.completion_tokens == 8
    own = {"api_key": "k", "timeout": 5, "max_retries": 3, "metadata": {"a": 1}}
    sent = {"model": "groq/llama", "messages": list(PROMPT.messages), "max_tokens": 128, **own}
    assert package.calls[0] == package.calls[2] == sent
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert package.calls[1] == package.calls[3] == {**sent, **streamed}


def test_a_choice(package: Package) -> None:
    package.text = '{"value": "b"}'
    assert LiteLLM("m").choose(PROMPT, ["a", "b"], token_length_normalized).text == "b"


def test_errors(package: Package) -> None:
    backend = LiteLLM("m")
    package.text = APITimeoutError("slow")
    with pytest.raises(errors.TimedOut, match="LiteLLM gave no answer within 600 s"):
        backend.complete(PROMPT, DEFAULTS)
    backend.shutdown()
    with pytest.raises(errors.BackendError, match="this LiteLLM backend has been shut down"):
        backend.complete(PROMPT, DEFAULTS)


def test_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(errors.Unsupported, match=r"LiteLLM needs: pip install -e '.\[litellm\]'"):
        LiteLLM("m")
