"""Stored context: the earlier responses of a tenant that a request continues, and their items."""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.openai.responses.items import Item, response_of
from sglang.srt.web.response_store import ResponseStore, StoredResponse

MAX_MARKS = 1 << 21  # most commas and brackets of JSON decoded for one request: about a second


class Past:
    """The caller's stored responses; counts the decoded JSON of one request."""

    def __init__(self, store: ResponseStore) -> None:
        self._store, self._tenant, self._marks = store, CALLER.get().tenant, 0
        self._items: dict[str, dict[str, Item]] = {}

    def conversation(self, id: str | None) -> list[Item]:
        """Return input and output of a response and of the responses that it continues, in order.

        Calls with incomplete arguments are left out, because no template can render them. Raises
        RequestError if a response is not stored, or if the items have too many values.
        """
        if not id:
            return []
        records = list(self._store.chain(self._store.find(self._tenant, id)))
        missing = records[-1].previous if records else id
        if missing:
            self._missing(id, missing)
        if records[0].live is not None:
            raise RequestError(
                f"Response {id!r:.80} is still being written; wait for its end, or cancel it.",
                "previous_response_id",
            )
        items = [item for record in reversed(records) for item in self._decoded(record)]
        return [
            item
            for item in items
            if item["type"] != "function_call" or item["status"] == "completed"
        ]

    def item(self, id: str) -> Item | None:
        """Return the stored item with this id, or None. Raises RequestError if the items have too
        many values."""
        response = response_of(id)
        if response not in self._items:
            record = self._store.peek(self._tenant, response)
            found = [] if record is None or record.live is not None else self._decoded(record)
            self._items[response] = {item["id"]: item for item in found}
        return self._items[response].get(id)

    @staticmethod
    def _missing(id: str, missing: str) -> None:
        where = "" if id == missing else f", which {id!r:.80} continues,"
        raise RequestError(
            f"Previous response {missing!r:.80}{where} is not stored (any more); send the "
            "conversation as input.",
            "previous_response_id",
            "previous_response_not_found",
        )

    def _decoded(self, record: StoredResponse) -> list[Item]:
        """Decode input and output of a response. Raises RequestError."""
        whole = record.items, record.value
        self._marks += sum(text.count(mark) for text in whole for mark in (b",", b"[", b"{"))
        if self._marks > MAX_MARKS:
            raise RequestError(
                f"The stored responses of this conversation have {self._marks} values or more; at "
                f"most {MAX_MARKS}. Send the conversation as input.",
                "previous_response_id",
            )
        value: dict[str, Any] = msgspec.json.decode(record.value)
        return [*msgspec.json.decode(record.items), *value["output"]]
