"""Fail the Nth page allocation, message, tokenizer call and socket write behind HTTP, for every N
of one scenario. After each: every request has ended once, nothing is leaked, and the server answers
a golden request with the same bytes."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, serve_text
from sglang.srt.engine.client import Client as EngineClient
from sglang.srt.engine.local import _QueueChannel
from sglang.srt.memory.pages import PagePool
from sglang.srt.tokenizer import Detokenizer, Tokenizer

PREFIX = "the quick brown fox jumps over "


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), capacity=96, context=90) as server:
        yield server


class Nth:
    """Counts calls on the server's threads; says "now" at the ``n``-th."""

    def __init__(self, n: int) -> None:
        self.n, self.calls, self._client = n, 0, threading.current_thread()

    def __call__(self) -> bool:
        if threading.current_thread() is self._client:
            return False
        self.calls += 1
        return self.calls == self.n


Fault = Callable[[pytest.MonkeyPatch, Nth], None]


def wrap(owner: Any, name: str, error: Exception) -> Fault:
    """The Nth call of ``owner.name`` raises ``error`` and does nothing."""

    def install(patch: pytest.MonkeyPatch, nth: Nth) -> None:
        before = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            if nth():
                raise error
            return before(*args, **options)

        patch.setattr(owner, name, call)

    return install


def transmit(patch: pytest.MonkeyPatch, nth: Nth) -> None:
    """The Nth message from a program to the engine is not taken."""
    made = EngineClient.send

    def send(self: Any, *verbs: Any) -> None:
        if not hasattr(self, "taken"):
            self.taken = self._transmit
        whole = self.taken

        def transmit(verbs: Any) -> None:
            if nth():
                raise OSError("the message was not taken")
            whole(verbs)

        self._transmit = transmit
        made(self, *verbs)

    patch.setattr(EngineClient, "send", send)


FAULTS: dict[str, tuple[Fault, bool]] = {  # the fault; whether a request may fail by it
    "allocation": (wrap(PagePool, "take", MemoryError("no page")), False),
    "message to the engine": (transmit, False),
    "message from the engine": (wrap(_QueueChannel, "emit", OSError("not taken")), False),
    "encode": (wrap(Tokenizer, "encode", RuntimeError("broken")), True),
    "decode": (wrap(Tokenizer, "decode", RuntimeError("broken")), True),
    "detokenize": (wrap(Detokenizer, "push", RuntimeError("broken")), True),
    "socket write": (wrap(socket.socket, "send", ConnectionResetError(104, "reset")), True),
}


class Scenario:
    """Requests of every kind; notes which ended well and which did not, and that none did twice."""

    def __init__(self, served: Served) -> None:
        self.served, self.failed, self.whole = served, 0, 0

    def run(self) -> None:
        many = [PREFIX + "a dog", PREFIX + "a cat"]
        settings = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
        self._post("/generate", {"text": many[0], "sampling_params": settings})
        self._post("/generate", {"text": many, "sampling_params": settings})
        prompt = {"prompt": PREFIX, "max_tokens": 3, "n": 2, "stream": True, "seed": 1}
        self._stream("/v1/completions", prompt)
        self._leave({"text": many[1], "stream": True, "sampling_params": settings})
        messages = [{"role": "user", "content": "what?"}]
        chat = {"messages": messages, "max_tokens": 3, "stream": True, "stop": ["zz"]}
        self._stream("/v1/chat/completions", chat)
        self._post("/v1/completions", {"prompt": "x", "max_tokens": 2, "echo": True, "logprobs": 1})
        self._post("/tokenize", {"prompt": "a b c"})
        self._post("/detokenize", {"tokens": [40, 41, 42]})

    def _ended(self, well: bool) -> None:
        self.whole += well
        self.failed += not well

    def _post(self, path: str, body: dict[str, Any]) -> None:
        try:
            reply = self.served.client.post(path, json=body)
        except httpx.TransportError:
            return self._ended(False)
        assert reply.status_code in (200, 500), reply.text
        value = reply.json()
        assert ("error" in value) == (reply.status_code == 500)
        self._ended(reply.status_code == 200)

    def _stream(self, path: str, body: dict[str, Any]) -> None:
        try:
            reply = self.served.client.post(path, json=body)
        except httpx.TransportError:
            return self._ended(False)
        if reply.status_code != 200:
            assert reply.status_code == 500, reply.text
            return self._ended(False)
        data = [part.removeprefix("data: ") for part in reply.text.split("\n\n") if part]
        errors = sum("error" in json.loads(each) for each in data if each != "[DONE]")
        assert data.count("[DONE]") + errors == 1, data
        assert data[-1] == "[DONE]" or "error" in json.loads(data[-1])
        self._ended(not errors)

    def _leave(self, body: dict[str, Any]) -> None:
        with self.served.open(body) as connection:
            connection.settimeout(60)
            connection.recv(64)


def none_open(served: Served) -> None:
    """The last answer was read before its request was counted as closed."""
    deadline = time.monotonic() + 60
    while served.state.open_requests:
        assert time.monotonic() < deadline, served.state.open_requests
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_nth_fault_behind_http(
    served: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install, may_fail = FAULTS[name]
    golden = served.client.golden()
    quiet = Scenario(served)
    quiet.run()
    assert not quiet.failed
    for n in itertools.count(1):
        nth = Nth(n)
        with monkeypatch.context() as patch:
            install(patch, nth)
            scenario = Scenario(served)
            scenario.run()
        assert scenario.whole + scenario.failed == quiet.whole
        assert scenario.failed <= (1 if may_fail else 0), f"fault {n}: {scenario.failed} failed"
        served.client.idle()
        none_open(served)
        assert served.client.golden() == golden
        if nth.calls < n:
            break
    assert n > 1, "the scenario never came to the fault"
