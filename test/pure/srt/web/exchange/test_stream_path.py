"""The way of a token from the engine to a client's stream: what is merged, prepared, and written
straight to the connection."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from helpers.scripted import Scripted, posted
from helpers.toy_tokenizer import byte_level
from hypothesis import given
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Done, Event, Failed, Tokens
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.wire import AT_ONCE, Wire
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.exchange.event_stream import Template, event

HOSTILE = 'a"b\\c\n\t\x00\x1f\u2028é日🙂</data>\n\ndata: [DONE]\n\n%s{}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


# -- prepared events ------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=9))
def test_a_template_writes_what_the_value_would_be(text: str, other: str) -> None:
    def value(shown: str) -> dict[str, Any]:
        return {"id": other, "choices": [{"text": shown, "logprobs": None}], "more": {other: "%b"}}

    assert Template(value(Template.HOLE)).event(text) == event(value(text))


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}, {"n": 2}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_chunk_is_as_if_written_by_itself(
    tokenizer: Tokenizer, path: str, more: dict[str, Any]
) -> None:
    """Byte for byte, whichever way it was made."""
    completion = Scripted(tokenizer)
    completion.text, completion.piece = HOSTILE, 3
    chat = "chat" in path
    asked = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    body = {**asked, "rid": 'an"id', "model": "a\\model", "stream": True, **more}
    reply = posted(completion, path, body)
    assert reply.status_code == 200, reply.text
    *frames, done, rest = reply.content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    texts, keys = [""] * more.get("n", 1), set()
    for frame in frames:
        data = frame.removeprefix(b"data: ")
        chunk = json.loads(data)
        assert data == msgspec.json.encode(chunk)
        assert (chunk["id"], chunk["model"]) == ('an"id', "a\\model")
        assert list(chunk)[:4] == ["id", "object", "created", "model"]
        keys.add((*chunk, bool(chunk["choices"])))
        for choice in chunk["choices"]:
            assert list(choice)[2:4] == ["logprobs", "finish_reason"]
            piece = choice["delta"].get("content", "") if chat else choice["text"]
            texts[choice["index"]] += piece
    assert texts == [HOSTILE] * len(texts)
    assert len(keys) == 1 + ("stream_options" in more), "the first chunk's, and the usage's"
    assert len(frames) > len(HOSTILE) // 3


# -- events that wait -----------------------------------------------------------------------------


def new_client(sent: list[Any]) -> Client:
    info = EngineInfo(
        model_path="toy", architecture="Toy", dtype="none", device="none", vocab_size=300,
        context_length=1024, capacity=1024, page_size=1, max_running_requests=1,
        max_queued_requests=1, eos=(),
    )  # fmt: skip
    return Client(info, sent.extend)


def test_an_inbox_hands_over_all_that_has_come() -> None:
    async def main() -> None:
        client = new_client([])
        inbox = client.submit(7, [])
        reading = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        first, *more = (Tokens(7, [token]) for token in range(4))
        client.deliver([first, Tokens(8, [9])])
        assert await reading == [first]
        client.deliver(more[:2])
        client.deliver([*more[2:], Done(7, "length")])
        assert await inbox.take() == [*more, Done(7, "length")]
        assert inbox.ended
        assert client.pending == 0

    asyncio.run(main())


def test_what_came_before_the_loss_is_read_first() -> None:
    async def main() -> None:
        client = new_client([])
        inbox, other = client.submit(7, []), client.submit(8, [])
        waiting = asyncio.ensure_future(other.take())
        await asyncio.sleep(0)
        client.deliver([Tokens(7, [1]), Tokens(7, [2])])
        client.fail(EngineLost("gone"))
        taken = [event for event in await inbox.take() if isinstance(event, Tokens)]
        assert [event.tokens for event in taken] == [[1], [2]]
        for reading in (inbox.take(), waiting):
            with pytest.raises(EngineLost, match="gone"):
                await reading
        assert client.pending == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    "end", [Done(0, "length"), Failed(0, "busy", "no room")], ids=["done", "failed"]
)
def test_tokens_that_wait_are_one_item_and_the_end_another(tokenizer: Tokenizer, end: Any) -> None:
    ids = list(tokenizer.encode("the lazy dog", False))

    async def main() -> list[tuple[str, int, bool]]:
        sent: list[Any] = []
        client = new_client(sent)
        request = CompletionRequest(ints([5]), SamplingParams(max_new_tokens=len(ids)))
        seen = []
        stream = Completer(client, tokenizer).stream(request)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        number = next(verb.request for verb in sent if isinstance(verb, Advance))
        events: list[Event] = [Tokens(number, [token]) for token in ids]
        end.request = number
        client.deliver(events[:1])
        output = await reading
        seen.append((output.text, len(output.tokens), output.finish is None))
        client.deliver(events[1:-1])
        client.deliver([events[-1], end])
        async for output in stream:
            seen.append((output.text, len(output.tokens), output.finish is None))
        return seen

    table = tokenizer.token_bytes
    wanted = [(table[ids[0]].decode(), 1, True), ("the lazy dog", len(ids), True)]
    if isinstance(end, Failed):
        with pytest.raises(RequestError, match="no room"):
            asyncio.run(main())
    else:
        assert asyncio.run(main()) == [*wanted, ("the lazy dog", len(ids), False)]


# -- the wire -------------------------------------------------------------------------------------


def test_no_frame_is_missed_however_sends_and_receipts_meet(tmp_path: Path) -> None:
    """The peer answers some frames at once, some in bursts of more than are read in a turn."""
    address, count = f"ipc://{tmp_path}/wire", 300
    peer: Any = zmq.Context.instance().socket(zmq.PAIR)
    peer.bind(address)

    def answer() -> None:
        waiting: list[bytes] = []
        for place in range(count):
            waiting.append(peer.recv())
            if place % 100 < 20 or place % 100 == 99:
                for frame in waiting:
                    peer.send(frame)
                waiting.clear()

    async def main() -> None:
        seen: list[bytes] = []
        wire = Wire(address, seen.append)
        for number in range(count):
            wire.send(b"%d" % number)
            if number % 3 == 0:
                await asyncio.sleep(0)
        while len(seen) < count:  # the test's own time limit ends it otherwise
            await asyncio.sleep(0.001)
        assert seen == [b"%d" % number for number in range(count)]
        wire.close()
        wire.close()
        with pytest.raises(OSError):
            wire.send(b"late")

    assert count > 3 * AT_ONCE
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        thread.join(60)
        peer.close(linger=0)
