"""Stored responses that a request reads again: how much of them is decoded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.openai.responses import stored_context
from sglang.srt.web.openai.responses.stored_context import Past
from sglang.srt.web.response_store import ResponseStore, StoredResponse


@pytest.fixture(autouse=True)
def caller() -> Iterator[None]:
    token = CALLER.set(Caller(tenant="t"))
    yield
    CALLER.reset(token)


def store_of(count: int, parts: int) -> ResponseStore:
    """Responses that continue one another, the input of each a message of so many empty parts."""
    store = ResponseStore(1 << 30)
    for i in range(count):
        content = [{"type": "input_text", "text": ""}] * parts
        item = {"id": f"msg_{i}_in0", "type": "message", "role": "user", "content": content}
        previous = f"resp_{i - 1}" if i else ""
        value = msgspec.json.encode({"output": []})
        store.put(StoredResponse(f"resp_{i}", "t", previous, msgspec.json.encode([item]), value))
    return store


def test_a_conversation_is_decoded_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(3, 100)
    assert len(Past(store).conversation("resp_2")) == 3
    monkeypatch.setattr(stored_context, "MAX_MARKS", 900)
    assert len(Past(store).conversation("resp_1")) == 2
    with pytest.raises(RequestError, match="at most 900") as raised:
        Past(store).conversation("resp_2")
    assert raised.value.param == "previous_response_id"


def test_items_that_are_referred_to_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(store_of(3, 100))
    monkeypatch.setattr(stored_context, "MAX_MARKS", 900)
    assert past.item("msg_0_in0") == past.item("msg_0_in0") is not None
    past.item("msg_1_in0")
    with pytest.raises(RequestError, match="at most 900"):
        past.item("msg_2_in0")
