"""Items: a conversation in the form of the Responses API; reading, and conversion to chat messages.

An item is a dictionary in the form that the API lists and stores: it has an ``id``, a ``type``, and
content as lists of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from sglang.srt.requests.completion.constraint_settings import json_text
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.openai.responses.server_calls import answered, error_text, with_results

Item: TypeAlias = dict[str, Any]
Find: TypeAlias = Callable[[str], Item | None]

ROLES = ("user", "assistant", "system", "developer")
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "mcp_call": "mcp",
}
_RULES = ("system", "developer")
_RANK = {"reasoning": 0, "message": 1, "function_call": 2}  # order in one turn
_TEXTS = ("input_text", "output_text", "text")


def item_id(kind: str, name: str, place: str) -> str:
    """Return the id of an item of the response ``resp_NAME``. ``place`` is unique in the
    response."""
    return f"{PREFIXES[kind]}_{name}_{place}"


def response_of(item: str) -> str:
    """Return the id of the response that an item's id belongs to; "" for an id of another form."""
    parts = item.split("_")
    return f"resp_{parts[1]}" if len(parts) == 3 else ""


def read_items(given: Any, name: str, before: Sequence[Item], find: Find) -> list[Item]:
    """Return the items of ``input``.

    ``name``: the response's, for ids of items without an id, or with the id of another item.
    ``before``: the conversation so far. ``find``: resolves references. Each stored item may be
    referred to only once, because the stored response contains all referred items. Raises
    RequestError.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError("input is missing; give text or a list of items.", "input")
    calls = {item["call_id"] for item in before if item["type"] == "function_call"}
    found: list[Item] = []
    ids, referred = set[str](), set[str]()
    for i, entry in enumerate(given):
        where = f"input[{i}]"
        if not isinstance(entry, dict):
            raise _wrong(where, "is no object; give an item")
        item = _read(where, entry, find)
        if "role" not in entry and entry.get("type") in (None, "item_reference"):
            if item["id"] in referred:
                raise _wrong(f"{where}.id", f"is {item['id']!r:.80}, as an earlier one; refer once")
            referred.add(item["id"])
        if not isinstance(item.get("id"), str) or item["id"] in ids:
            item["id"] = item_id(item["type"], name, f"in{i}")
        ids.add(item["id"])
        if item["type"] == "function_call":
            calls.add(item["call_id"])
        elif item["type"] == "function_call_output" and item["call_id"] not in calls:
            raise _wrong(f"{where}.call_id", f"is {item['call_id']!r:.80}; no call before has it")
        found.append(item)
    return found


def _read(where: str, entry: Item, find: Find) -> Item:
    kind = entry.get("type")
    if kind is None:
        kind = "message" if "role" in entry else "item_reference"
    if kind == "item_reference":
        name = entry.get("id")
        item = find(name) if isinstance(name, str) else None
        if item is None:
            raise _wrong(f"{where}.id", f"is {name!r:.80}; no stored item has it, give the item")
        return dict(item)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise RequestError(
            f"{where}.type is {kind!r:.60}; use {', '.join(_READERS)} or item_reference.",
            "input",
            "unsupported",
        )
    return {"id": entry.get("id"), "type": kind, **reader(where, entry)}


def _message(where: str, entry: Item) -> Item:
    role = entry.get("role")
    if role not in ROLES:
        raise _wrong(f"{where}.role", f"is {role!r:.60}; use one of {', '.join(ROLES)}")
    content = entry.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise _wrong(f"{where}.content", "must be text or a list of parts")
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [
        _image(f"{where}.content[{i}]", part)
        if role == "user" and isinstance(part, dict) and part.get("type") == "input_image"
        else _part(f"{where}.content[{i}]", part, kind)
        for i, part in enumerate(content)
    ]
    return {"role": role, "status": "completed", "content": parts}


def _part(where: str, part: Any, kind: str) -> Item:
    """Return a content part with type ``kind``. Raises RequestError."""
    given = part.get("type") if isinstance(part, dict) else None
    if given == "refusal" and kind == "output_text" and isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    if given not in _TEXTS:
        raise RequestError(
            f"{where}.type is {given!r:.60}; text ({kind}) is available here, and input_image in "
            "messages of the user.",
            "input",
            "unsupported",
        )
    text = _text(where, part, "text")
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _image(where: str, part: Item) -> Item:
    url = part.get("image_url")
    if not isinstance(url, str):
        raise _wrong(f"{where}.image_url", "is missing; files are not kept here, give a data URL")
    detail = part.get("detail") or "auto"
    if not isinstance(detail, str):
        raise _wrong(f"{where}.detail", f"is {detail!r:.60}; give a text")
    return {"type": "input_image", "image_url": url, "detail": detail}


def _reasoning(where: str, entry: Item) -> Item:
    """Return a reasoning item without its encrypted content, which this server cannot read. Raises
    RequestError."""
    found: Item = {}
    for field, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = entry.get(field) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise _wrong(f"{where}.{field}", "must be a list of parts")
        found[field] = [
            {"type": kind, "text": _text(f"{where}.{field}[{i}]", part, "text")}
            for i, part in enumerate(parts)
        ]
    return found


def _call(where: str, entry: Item) -> Item:
    return {"call_id": _text(where, entry, "call_id"), **_function(where, entry),
            "status": "completed"}  # fmt: skip


def _function(where: str, entry: Item) -> Item:
    found = {name: _text(where, entry, name) for name in ("name", "arguments")}
    try:
        json_text("arguments", found["arguments"], (dict,), "the text of an object")
    except ValueError as error:
        raise RequestError(f"{where}.{error}", "input") from error
    return found


def _server_call(where: str, entry: Item) -> Item:
    output, error = entry.get("output"), entry.get("error")
    failed = error is not None
    text = error_text(error) if failed else output
    if not isinstance(text, str):
        raise _wrong(f"{where}.{'error' if failed else 'output'}", f"is {text!r:.60}; give a text")
    label = entry.get("server_label")
    if not isinstance(label, str | None):
        raise _wrong(f"{where}.server_label", f"is {label!r:.60}; give a text")
    return answered({**_function(where, entry), "server_label": label}, text, failed)


def _result(where: str, entry: Item) -> Item:
    output = entry.get("output")
    if isinstance(output, list):
        output = [
            _part(f"{where}.output[{i}]", part, "input_text") for i, part in enumerate(output)
        ]
    elif not isinstance(output, str):
        raise _wrong(f"{where}.output", "must be text or a list of parts")
    return {"call_id": _text(where, entry, "call_id"), "output": output, "status": "completed"}


def _text(where: str, entry: Item, field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str):
        raise _wrong(f"{where}.{field}", f"is {value!r:.60}; give a text")
    return value


def _wrong(where: str, reason: str) -> RequestError:
    return RequestError(f"{where} {reason}.", "input")


_READERS: dict[str, Callable[[str, Item], Item]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _result,
    "mcp_call": _server_call,
}


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the conversation as messages of a chat.

    Adjacent items of one turn of the assistant (reasoning, then a text, then calls) become one
    message. The instructions and leading system and developer messages become one too.
    """
    items = list(with_results(items))
    first = list(takewhile(_is_rule, items))
    rules = [instructions] if instructions else []
    rules += [_words(item["content"]) for item in first]
    messages: list[dict[str, Any]] = []
    if rules:
        messages.append({"role": "system", "content": "\n\n".join(rules)})
    rank = len(_RANK)  # rank of the last item if it is the assistant's; else above all ranks
    results: dict[str, str] = {}  # call_id to name
    for item in items[len(first) :]:
        kind = item["type"]
        if kind == "function_call_output":
            call = item["call_id"]
            message = {"role": "tool", "tool_call_id": call, "content": _words(item["output"])}
            if call in results:
                message["name"] = results[call]
        elif kind == "message" and item["role"] != "assistant":
            message = {"role": item["role"], "content": _content(item["content"])}
        else:
            if kind == "function_call":
                results[item["call_id"]] = item["name"]
            if rank > _RANK[kind] or (rank == _RANK[kind] and kind != "function_call"):
                messages.append({"role": "assistant", "content": ""})
            _join(messages[-1], item)
            rank = _RANK[kind]
            continue
        messages.append(message)
        rank = len(_RANK)
    return messages


def _is_rule(item: Item) -> bool:
    return item["type"] == "message" and item["role"] in _RULES


def _join(message: dict[str, Any], item: Item) -> None:
    """Add an item to the message of its turn."""
    if item["type"] == "message":
        message["content"] = _words(item["content"])
    elif item["type"] == "reasoning":
        thoughts = _words(item["content"]) or _words(item["summary"])
        if thoughts:
            message["reasoning_content"] = thoughts
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)


def _content(content: list[Item]) -> str | list[Item]:
    """Return the text of parts, or the parts if some are images."""
    return content if any(part["type"] == "input_image" for part in content) else _words(content)


def _words(content: str | list[Item]) -> str:
    """Return the text of parts."""
    if isinstance(content, str):
        return content
    return "".join(part["refusal" if part["type"] == "refusal" else "text"] for part in content)
