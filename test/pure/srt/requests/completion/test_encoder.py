"""Tokenizing: the bytes in work are bounded over all requests, counted where they are tokenized."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.config import Config
from sglang.srt.requests.completion.encoder import SMALL, WAITING, Encoder, bytes_of
from sglang.srt.requests.request_error import RequestError

MOST = 4 * SMALL


class Counter:
    """Bytes of long texts that are tokenized at once; each text takes ``seconds`` longer."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self.now = self.most = self.texts = 0

    def around(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        def counted(text: str, *args: Any) -> Any:
            size = bytes_of(text)
            if size <= SMALL:
                return encode(text, *args)
            with self._lock:
                self.now += size
                self.texts += 1
                self.most = max(self.most, self.now)
            try:
                time.sleep(self._seconds)
                return encode(text, *args)
            finally:
                with self._lock:
                    self.now -= size

        return counted


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a tokenizer that does not allow cutting texts."""
    config = Config.of(max_tokenized_bytes=MOST)
    directory = tmp_path_factory.mktemp("tokenizer")
    with serve_text(directory, config, capacity=1 << 19, context=1 << 19) as server:
        server.tokenizer._can_cut = False
        yield server


@pytest.fixture
def counter(served: Served, monkeypatch: pytest.MonkeyPatch) -> Counter:
    made = Counter(0.02)
    for name in ("encode_piece", "encode_escaped"):
        monkeypatch.setattr(served.tokenizer, name, made.around(getattr(served.tokenizer, name)))
    return made


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


CUT = {"sampling_params": {"max_new_tokens": 1}}
BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "/tokenize": lambda text: {"prompt": [text, "short", text]},
    "/v1/messages/count_tokens": lambda text: {"model": "m", "messages": said(text)},
    "/v1/responses/input_tokens": lambda text: {"input": text},
    "/generate": lambda text: {"text": text, **CUT},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 1},
    # A control token in a user's text: another tokenizer encodes it.
    "/v1/chat/completions": lambda text: {
        "messages": said(text + "<|im_end|>"), "max_tokens": 1,
    },
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/rerank": lambda text: {"query": "q", "documents": [text]},
}  # fmt: skip


@pytest.mark.slow
def test_bytes_in_work_are_bounded_whatever_the_route(served: Served, counter: Counter) -> None:
    text = "the lazy dog " * (MOST * 2 // 5 // 13)  # two fit at once
    size = bytes_of(text)

    def post(path: str) -> httpx.Response:
        return httpx.post(served.url + path, json=BODIES[path](text), timeout=60)

    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(post, [*BODIES, *BODIES]))
    for path, reply in zip([*BODIES, *BODIES], replies):
        assert reply.status_code == 200, (path, reply.text[:200])
    assert counter.texts >= 2 * len(BODIES)
    assert size < counter.most <= MOST
    encoder = served.state.runtime.completion.encoder
    assert encoder.held == encoder.waiting == 0
    served.client.idle()


def test_a_text_that_never_fits_is_a_400(served: Served, counter: Counter) -> None:
    text = "é" * (MOST // 2 + 1)
    for path in ("/tokenize", "/v1/messages/count_tokens"):
        reply = served.client.post(path, json=BODIES[path](text))
        assert reply.status_code == 400
        assert f"at most {MOST} are tokenized at once" in reply.text
        assert "--max-tokenized-bytes" in reply.text
    assert counter.texts == 0


def test_who_would_wait_behind_too_much_is_a_503(served: Served, counter: Counter) -> None:
    encoder = served.state.runtime.completion.encoder
    encoder.held, encoder.waiting = MOST, WAITING * MOST  # as if so much were there
    try:
        reply = served.client.post("/tokenize", json={"prompt": "a" * (SMALL + 1)})
        error = is_error(reply, 503)
        assert error["code"] == "overloaded"
        assert reply.headers["retry-after"] == "5"
        small = served.client.post("/tokenize", json={"prompt": "a" * 1000})
        assert small.status_code == 200, "short texts wait for nobody"
    finally:
        encoder.held = encoder.waiting = 0
    assert counter.texts == 0


def test_a_client_that_leaves_frees_no_memory_that_is_in_use(
    served: Served, counter: Counter
) -> None:
    text = "the lazy dog " * (MOST * 3 // 4 // 13)  # one fits at once
    counter._seconds = 0.2
    for _ in range(6):
        served.open({"text": text, **CUT}).close()
    encoder = served.state.runtime.completion.encoder
    assert served.client.post("/tokenize", json={"prompt": text}).status_code == 200
    assert counter.most <= MOST
    deadline = time.monotonic() + 60
    while encoder.held or encoder.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ids_are_those_of_the_tokenizer(served: Served) -> None:
    texts = ["the lazy dog " * 9000, "a", "", "😀é\n" * 9000]
    found = served.client.post(
        "/tokenize", json={"prompt": texts, "return_token_strs": True}
    ).json()
    assert found["tokens"] == [list(served.tokenizer.encode(text)) for text in texts]
    assert found["count"] == [len(row) for row in found["tokens"]]
    assert [len(row) for row in found["token_strs"]] == found["count"]
    one = served.client.post("/tokenize", json={"prompt": texts[0]}).json()
    assert (one["tokens"], one["count"]) == (found["tokens"][0], found["count"][0])


@pytest.mark.slow
def test_a_text_that_can_be_cut_takes_little_at_once(
    served: Served, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.tokenizer, "_can_cut", True)
    text = "the lazy dog " * (MOST // 4)  # more bytes than may be in work
    pieces = list(served.tokenizer.pieces(text))
    assert max(map(bytes_of, pieces)) < SMALL < MOST < bytes_of(text)
    found = served.client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert counter.texts == 0
    assert found == served.tokenizer._model.encode(text).ids


# -- any order of coming, going and giving up -----------------------------------------------------

Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(SMALL + 1, MOST)),
        st.tuples(st.just("end"), st.integers(0, 7)),
        st.tuples(st.just("give up"), st.integers(0, 7)),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_turns(steps: list[Step]) -> None:
    """Compare with a plain model: first come, first served, and never more than MOST are in
    work."""

    async def main() -> None:
        encoder = Encoder(SimpleNamespace(), MOST)  # type: ignore[arg-type]
        tasks: list[tuple[int, asyncio.Task[Any]]] = []
        inside: list[tuple[int, asyncio.Task[Any]]] = []
        waiting: list[tuple[int, asyncio.Task[Any]]] = []

        def admit() -> None:
            while waiting and sum(s for s, _ in inside) + waiting[0][0] <= MOST:
                inside.append(waiting.pop(0))

        for kind, number in steps:
            if kind == "come":
                task = asyncio.ensure_future(encoder._enter(number))
                tasks.append((number, task))
                waiting_bytes = sum(s for s, _ in waiting)
                fits = not waiting and sum(s for s, _ in inside) + number <= MOST
                if fits or waiting_bytes + number <= WAITING * MOST:
                    waiting.append((number, task))
                    admit()
            elif kind == "end" and inside:
                size, _ = inside.pop(number % len(inside))
                encoder._leave(size)
                admit()
            elif kind == "give up" and waiting:
                waiting.pop(number % len(waiting))[1].cancel()
                admit()
            for _ in range(3):
                await asyncio.sleep(0)
            assert encoder.held == sum(s for s, _ in inside) <= MOST
            assert encoder.waiting == sum(s for s, _ in waiting)
            assert all(task.done() for _, task in inside)
            assert not any(task.done() for _, task in waiting)
        for _, task in waiting:
            task.cancel()
        ended = await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
        assert {type(one) for one in ended} <= {
            type(None), asyncio.CancelledError, RequestError
        }  # fmt: skip
        assert encoder.waiting == 0
        assert encoder.held == sum(s for s, _ in inside)

    asyncio.run(main())


def test_giving_up_in_the_step_of_the_turn() -> None:
    async def main() -> None:
        encoder = Encoder(SimpleNamespace(), MOST)  # type: ignore[arg-type]
        await encoder._enter(MOST)
        second = asyncio.ensure_future(encoder._enter(MOST))
        await asyncio.sleep(0)
        encoder._leave(MOST)  # the second's turn, which it does not know yet
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert (encoder.held, encoder.waiting) == (0, 0)

    asyncio.run(main())
