"""ItemWriter: builds the items of a response from deltas, and the event of each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from sglang.semantics.tool_calls.deltas import AnswerWords, Arguments, Begin, Delta, Thought
from sglang.srt.web.openai.responses.items import Item, item_id
from sglang.srt.web.openai.responses.server_calls import answered, begun, call_place

Event: TypeAlias = dict[str, Any]


class ItemWriter:
    """The output of one response, and its numbered events.

    Ids are made of the response's ``name`` and the items' indices. So the items depend only on the
    joined deltas, and not on how a stream cuts them.
    """

    def __init__(self, name: str) -> None:
        self._name, self._sequence = name, 0
        self._items: list[Item] = []
        self._open: _Open | None = None
        self._running: dict[str, int] = {}  # ids of calls that the server runs, with their indices

    def event(self, kind: str, **fields: Any) -> Event:
        """Return the next event, with the next sequence number."""
        found = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return found

    def items(self) -> list[Item]:
        """Return the output so far."""
        rest = [] if self._open is None else [self._open.item("in_progress")]
        return [*self._items, *rest]

    @property
    def in_call(self) -> bool:
        """Whether the last item is a call that may still grow."""
        return isinstance(self._open, _Call)

    def write(self, deltas: Iterable[Delta], logprobs: Sequence[Any] = ()) -> list[Event]:
        """Return the events of the next deltas. ``logprobs``: those of the deltas' answer text."""
        events = []
        for delta in deltas:
            if isinstance(delta, Begin):
                events += self._close("completed")
                events += self._begin(_Call(self._name, len(self._items), delta))
            elif delta.text:
                if isinstance(delta, (AnswerWords, Thought)):
                    events += self._enter(
                        _Message if isinstance(delta, AnswerWords) else _Reasoning
                    )
                events.append(self._add(delta, logprobs))
                logprobs = () if isinstance(delta, AnswerWords) else logprobs
        return events

    def call_id(self, turn: int, index: int) -> str:
        """Return the id of a call that the server runs."""
        return item_id("mcp_call", self._name, call_place(turn, index))

    def calling(self, calls: Iterable[dict[str, Any]]) -> list[Event]:
        """Return the events of calls that the server begins to run."""
        events = self._close("completed")
        for call in calls:
            item, place = begun(call), len(self._items)
            indices = {"item_id": item["id"], "output_index": place}
            bare, text = {**item, "arguments": ""}, item["arguments"]
            self._items.append(item)
            self._running[item["id"]] = place
            events += [
                self.event("response.output_item.added", output_index=place, item=bare),
                self.event("response.mcp_call.in_progress", **indices),
                self.event("response.mcp_call_arguments.delta", **indices, delta=text),
                self.event("response.mcp_call_arguments.done", **indices, arguments=text),
            ]
        return events

    def called(self, results: Iterable[dict[str, Any]], failed: frozenset[str]) -> list[Event]:
        """Return the events of the results of calls. ``failed``: ids of failed calls."""
        events = []
        for result in results:
            id = result["tool_call_id"]
            place = self._running.pop(id)
            item = answered(self._items[place], result["content"], id in failed)
            kind = f"response.mcp_call.{item['status']}"
            events.append(self.event(kind, item_id=id, output_index=place))
            events += self._replace(place, item)
        return events

    def end(self, status: str) -> list[Event]:
        """End the last item and all running calls, and return the events. A response without any
        item gets an empty message."""
        events = [] if self._items or self._open else self._enter(_Message)
        for place in self._running.values():
            events += self._replace(place, {**self._items[place], "status": "incomplete"})
        self._running = {}
        return [*events, *self._close(status)]

    def _replace(self, place: int, item: Item) -> list[Event]:
        self._items[place] = item
        return [self.event("response.output_item.done", output_index=place, item=item)]

    def _enter(self, kind: type[_Message] | type[_Reasoning]) -> list[Event]:
        """Open an item of this kind, unless one is open; return the events."""
        if isinstance(self._open, kind):
            return []
        events = self._close("completed")
        return [*events, *self._begin(kind(self._name, len(self._items)))]

    def _begin(self, opened: _Open) -> list[Event]:
        self._open = opened
        fields = {"output_index": opened.index, "item": opened.bare()}
        events = [self.event("response.output_item.added", **fields)]
        if (part := opened.part("")) is not None:
            events.append(self.event("response.content_part.added", **opened.indices, part=part))
        return events

    def _add(self, delta: AnswerWords | Thought | Arguments, logprobs: Sequence[Any]) -> Event:
        assert self._open is not None
        self._open.pieces.append(delta.text)
        fields = {**self._open.indices, "delta": delta.text}
        if isinstance(self._open, _Message):
            self._open.logprobs += logprobs
            fields["logprobs"] = list(logprobs)
        return self.event(f"response.{self._open.content}.delta", **fields)

    def _close(self, status: str) -> list[Event]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        text, item = opened.text, opened.item(status)
        self._items.append(item)
        events = [self.event(f"response.{opened.content}.done", **opened.indices, **opened.whole())]
        if (part := opened.part(text)) is not None:
            events.append(self.event("response.content_part.done", **opened.indices, part=part))
        fields = {"output_index": opened.index, "item": item}
        return [*events, self.event("response.output_item.done", **fields)]


class _Open:
    """An item that is being generated.

    Attributes:
        kind: type of the item. content: name of its text in the types of events.
        indices: fields that identify the item in events.
    """

    kind = content = ""

    def __init__(self, name: str, index: int) -> None:
        self.index, self.pieces = index, list[str]()
        self.logprobs: list[Any] = []
        self.id = item_id(self.kind, name, str(index))
        self.indices: dict[str, Any] = {
            "item_id": self.id, "output_index": index, "content_index": 0,
        }  # fmt: skip

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def head(self, status: str) -> Item:
        return {"id": self.id, "type": self.kind, "status": status}

    def bare(self) -> Item:
        """Return the item at its beginning, without content."""
        raise NotImplementedError

    def item(self, status: str) -> Item:
        """Return the item with all of its content."""
        raise NotImplementedError

    def part(self, text: str) -> Item | None:
        """Return the item's only content part, with this text; None if it has no parts."""
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """Return the fields of the event that ends the text."""
        return {"text": self.text}


class _Message(_Open):
    kind, content = "message", "output_text"

    def bare(self) -> Item:
        return {**self.head("in_progress"), "role": "assistant", "content": []}

    def item(self, status: str) -> Item:
        return {**self.bare(), "status": status, "content": [self.part(self.text)]}

    def part(self, text: str) -> Item:
        logprobs = list(self.logprobs) if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def whole(self) -> dict[str, Any]:
        return {"text": self.text, "logprobs": list(self.logprobs)}


class _Reasoning(_Open):
    kind, content = "reasoning", "reasoning_text"

    def bare(self) -> Item:
        return {**self.head("in_progress"), "summary": [], "content": []}

    def item(self, status: str) -> Item:
        return {**self.bare(), "status": status, "content": [self.part(self.text)]}

    def part(self, text: str) -> Item:
        return {"type": "reasoning_text", "text": text}


class _Call(_Open):
    kind, content = "function_call", "function_call_arguments"

    def __init__(self, name: str, index: int, begin: Begin) -> None:
        super().__init__(name, index)
        self._fields = {"call_id": f"call_{name}_{begin.call}", "name": begin.name}
        del self.indices["content_index"]

    def bare(self) -> Item:
        return {**self.head("in_progress"), **self._fields, "arguments": ""}

    def item(self, status: str) -> Item:
        return {**self.bare(), "status": status, "arguments": self.text}

    def part(self, text: str) -> None:
        return None

    def whole(self) -> dict[str, Any]:
        return {"name": self._fields["name"], "arguments": self.text}
