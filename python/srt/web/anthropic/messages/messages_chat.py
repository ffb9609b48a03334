"""Conversion of a body of /v1/messages to a chat request.

system, or a message of that role  becomes a system message
image                              becomes a part of the user's message
text blocks                        become one text: joined by line breaks for a user or the system,
                                   without a separator for the assistant
tool_use                           becomes a call of the assistant's message
tool_result                        becomes a tool message; one turn's are sorted by their calls
mcp_tool_use, mcp_tool_result      likewise, for tools that the server has run
thinking                           becomes ``reasoning_content``, which a template may write
a last message of the assistant    is continued by the reply
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NoReturn

import msgspec
from sglang.srt.requests.request_error import RequestError, Reworded
from sglang.srt.runtime.completion_fields import CompletionFields, refuse
from sglang.srt.runtime.conversations.chat_request import ChatRequest
from sglang.srt.runtime.conversations.toolbox_turns import KIND
from sglang.srt.web.anthropic.messages.messages_body import (
    Block,
    CustomTool,
    ImageBlock,
    McpToolResultBlock,
    McpToolUseBlock,
    MessagesBody,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from sglang.srt.web.exchange.error_replies import ServerError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SPELLINGS = {
    re.compile(r"^(tools\[\d+\])\.function\.parameters"): r"\1.input_schema",
    re.compile(r"^(tools\[\d+\])\.function"): r"\1",
    re.compile(r"^stop "): "stop_sequences ",
    re.compile(r"^response_format \(or json_schema\)"): "output_config.format",
}
# Claude Code's prompts begin with a line for billing. The line differs in every request, so nothing
# after it could be reused from the cache.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")

Placed = tuple[str, Block]  # a block's path for errors, and the block
Calls = dict[str, tuple[int, str]]  # by id: the call's index, and the tool's name


def chat_of(body: MessagesBody) -> ChatRequest:
    """Return a body of /v1/messages as a chat. Raises RequestError. For a ``thread`` raises
    ServerError with a code that makes clients send the whole conversation."""
    if body.thread is not None:
        raise ServerError(
            "thread_unsupported_request", "No thread is kept here; send the whole conversation."
        )
    for name in ("mcp_servers", "compaction"):
        refuse(name, getattr(body, name))
    if body.stop is not None:
        raise RequestError("stop is called stop_sequences here; rename it.", "stop")
    if body.n not in (None, 1):
        raise RequestError(f"n is {body.n}; a reply is one message. Remove it.", "n")
    messages = _messages(body)
    shared = {name: getattr(body, name) for name in CompletionFields.__struct_fields__}
    choice = body.tool_choice
    return ChatRequest(
        **{**shared, "n": None, "stop": body.stop_sequences, "response_format": _format(body)},
        messages=messages,
        tools=[_tool(i, tool) for i, tool in enumerate(body.tools or ())] or None,
        tool_choice=_choice(body),
        max_calls=body.max_calls,
        kv_hints=body.kv_hints,
        parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        continue_final_message=messages[-1]["role"] == "assistant",
        reasoning_effort=None if body.output_config is None else body.output_config.effort,
        chat_template_kwargs=_variables(body),
    )


def spelled() -> Reworded:
    """Return a block that renames the fields in a chat's errors to the body's fields."""
    return Reworded(_spelled)


def _spelled(error: RequestError) -> RequestError:
    message = error.message
    for theirs, ours in _SPELLINGS.items():
        message = theirs.sub(ours, message)
    return error.reworded(message, error.param)


def _variables(body: MessagesBody) -> dict[str, Any]:
    """Return the template's variables: thinking under its two usual names, and the request's."""
    found = {"enable_thinking": body.thinks, "thinking": body.thinks}
    return {**found, **(body.chat_template_kwargs or {})}


def _format(body: MessagesBody) -> dict[str, Any] | None:
    """Return the output format, from one of three fields. Raises RequestError."""
    configured = body.output_config and body.output_config.format
    fields: dict[str, Any] = {
        "output_config.format": configured,
        "output_format": body.output_format,
        "response_format": body.response_format,
    }
    given = [name for name, value in fields.items() if value is not None]
    if len(given) > 1:
        raise RequestError(f"{given[0]} and {given[1]} exclude one another; give one.", given[1])
    format = configured or body.output_format
    if format is None:
        return body.response_format
    return {"type": "json_schema", "json_schema": {"schema": format.schema}}


# -- tools ----------------------------------------------------------------------------------------


def _tool(place: int, tool: CustomTool) -> dict[str, Any]:
    if tool.type == KIND:
        given = msgspec.structs.asdict(tool)
        return {name: value for name, value in given.items() if value is not None}
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"tools[{place}].type is {tool.type!r:.80}, a tool that this server does not have; "
            "only custom ones are available: give a name and an input_schema.",
            "tools",
            "unsupported",
        )
    if tool.input_schema is None:
        raise RequestError(f"tools[{place}].input_schema is missing; give a JSON schema.", "tools")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(body: MessagesBody) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise RequestError("tool_choice.name is missing; name a tool.", "tool_choice")
    return {"type": "function", "function": {"name": choice.name}}


# -- messages -------------------------------------------------------------------------------------


def _messages(body: MessagesBody) -> list[dict[str, Any]]:
    found, calls = _system(body.system or ""), Calls()
    begun = len(found)
    for role, group in groupby(enumerate(body.messages), lambda item: item[1].role):
        blocks_of = (_placed(i, message.content) for i, message in group)
        placed = [block for blocks in blocks_of for block in blocks]
        if role == "assistant":
            found += _turns(placed, calls)
        elif role == "user":
            found += _user(placed, calls)
        else:
            found.append({"role": role, "content": "\n".join(map(_text, placed))})
    last = found[-1] if len(found) > begun else {}
    if last.get("tool_calls"):
        raise RequestError(
            "messages ends with a tool_use; add a user message with its tool_result.", "messages"
        )
    if last.get("role") == "assistant" and not last["content"]:
        found.pop()  # an empty message cannot be continued
    if len(found) == begun:
        raise RequestError("messages is empty; give at least one with content.", "messages")
    return found


def _system(system: str | list[TextBlock]) -> list[dict[str, Any]]:
    """Return a list with the system message, if there is one."""
    texts = [system] if isinstance(system, str) else [block.text for block in system]
    kept = [text for text in (_BILLING.sub("", text) for text in texts) if text]
    return [{"role": "system", "content": "\n".join(kept)}] if kept else []


def _placed(index: int, content: str | list[Block]) -> list[Placed]:
    where = f"messages[{index}].content"
    if isinstance(content, str):
        return [(where, TextBlock(content))]
    return [(f"{where}[{i}]", block) for i, block in enumerate(content)]


def _turns(placed: list[Placed], calls: Calls) -> list[dict[str, Any]]:
    """Return the assistant's messages, with the results of the server's tools between them."""
    found: list[dict[str, Any]] = []
    for ran, group in groupby(placed, lambda item: isinstance(item[1], McpToolResultBlock)):
        blocks = list(group)
        found += _results(blocks, calls) if ran else [_assistant(blocks, calls)]
    return found or [_assistant([], calls)]


def _assistant(placed: Iterable[Placed], calls: Calls) -> dict[str, Any]:
    """Return one message of the assistant, and add its calls to ``calls``."""
    texts, thoughts, made = list[str](), list[str](), list[dict[str, Any]]()
    for where, block in placed:
        if isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock | McpToolUseBlock):
            if block.id in calls:
                raise RequestError(
                    f"{where}.id is {block.id!r:.80}, as in an earlier block; ids must differ.",
                    "messages",
                )
            calls[block.id] = len(calls), block.name
            function = {"name": block.name, "arguments": block.input}
            made.append({"id": block.id, "type": "function", "function": function})
        elif not isinstance(block, RedactedThinkingBlock):
            texts.append(_text((where, block)))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if made:
        message["tool_calls"] = made
    return message


def _user(placed: Iterable[Placed], calls: Calls) -> list[dict[str, Any]]:
    """Return the tool messages and the messages of the user, in their order."""
    found: list[dict[str, Any]] = []
    for is_result, group in groupby(placed, lambda item: isinstance(item[1], ToolResultBlock)):
        if is_result:
            found += _results(group, calls)
        else:
            found.append({"role": "user", "content": _content(list(group))})
    return found


def _results(placed: Iterable[Placed], calls: Calls) -> list[dict[str, Any]]:
    results = [_result(where, block, calls) for where, block in placed]
    return sorted(results, key=lambda result: calls[result["tool_call_id"]])


def _content(placed: list[Placed]) -> str | list[dict[str, Any]]:
    """Return one text, or a list of texts and images."""
    if not any(isinstance(block, ImageBlock) for _, block in placed):
        return "\n".join(map(_text, placed))
    parts: list[dict[str, Any]] = []
    for is_image, group in groupby(placed, lambda item: isinstance(item[1], ImageBlock)):
        if is_image:
            parts += [_image(where, block) for where, block in group]
        else:
            parts.append({"type": "text", "text": "\n".join(map(_text, group))})
    return parts


def _image(where: str, block: Block) -> dict[str, Any]:
    assert isinstance(block, ImageBlock)
    if block.source is None:
        raise RequestError(f"{where}.source is missing; give base64 data.", "messages")
    return {"type": "image_url", "image_url": block.source.address}


def _result(where: str, block: Block, calls: Calls) -> dict[str, Any]:
    assert isinstance(block, ToolResultBlock | McpToolResultBlock)
    if block.tool_use_id not in calls:
        raise RequestError(
            f"{where}.tool_use_id is {block.tool_use_id!r:.80}, which no tool_use before it has.",
            "messages",
        )
    content = block.content or ""
    if not isinstance(content, str):
        parts = [(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
        content = "\n".join(map(_text, parts))
    if block.is_error and isinstance(block, ToolResultBlock):
        content = f"Error: {content}"
    name = calls[block.tool_use_id][1]
    return {"role": "tool", "tool_call_id": block.tool_use_id, "name": name, "content": content}


def _text(placed: Placed) -> str:
    where, block = placed
    return block.text if isinstance(block, TextBlock) else _refuse(where, block)


def _refuse(where: str, block: Block) -> NoReturn:
    kind = block.__struct_config__.tag
    media = kind in ("image", "document", "search_result")
    reason = "is not available there" if media else "has no place there"
    raise RequestError(
        f"{where} is of type {kind!r}, which {reason}; give text.", "messages", "unsupported"
    )
