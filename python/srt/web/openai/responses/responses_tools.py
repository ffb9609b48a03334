"""Tools and ``tool_choice`` of the Responses API (flat objects), and conversion to a chat's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.tool_use import MAX_TOOLS
from sglang.srt.runtime.conversations.toolbox_turns import KIND

_MODES = ("none", "auto", "required")
_FIELDS = ("name", "description", "parameters", "strict")


def tools_of(given: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Return the functions, and the server's tools by name. Raises RequestError."""
    if given and len(given) > MAX_TOOLS:
        raise RequestError(f"tools has {len(given)} entries; at most {MAX_TOOLS}.", "tools")
    found = []
    for i, tool in enumerate(given or []):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind == KIND:
            found.append(tool)
            continue
        if kind != "function":
            raise RequestError(
                f"tools[{i}].type is {kind!r:.60}; only function is available.",
                "tools",
                "unsupported",
            )
        found.append({"type": "function", **{name: tool.get(name) for name in _FIELDS}})
    return found


def echoed(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as a response repeats them. The server's tools are shown as those of one MCP
    server."""
    own = [tool["name"] for tool in tools if tool["type"] == KIND]
    server = {"type": "mcp", "server_label": KIND, "allowed_tools": own}
    server["require_approval"] = "never"
    return [tool for tool in tools if tool["type"] != KIND] + ([server] if own else [])


def choice_of(given: Any, tools: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """Return ``tool_choice`` as a response repeats it. Raises RequestError."""
    if given is None:
        return "auto"
    if isinstance(given, str):
        if given not in _MODES:
            raise _wrong(f"tool_choice is {given!r:.60}; use {', '.join(_MODES)}, or an object.")
        return given
    kind, names = given.get("type"), [tool["name"] for tool in tools]
    if kind == "function":
        return _function(given, names, "tool_choice")
    if kind != "allowed_tools":
        raise RequestError(
            f"tool_choice.type is {kind!r:.60}; use function or allowed_tools.",
            "tool_choice",
            "unsupported",
        )
    mode, allowed = given.get("mode", "auto"), given.get("tools")
    if mode not in _MODES[1:]:
        raise _wrong(f"tool_choice.mode is {mode!r:.60}; use {' or '.join(_MODES[1:])}.")
    if not isinstance(allowed, list) or not 1 <= len(allowed) <= MAX_TOOLS:
        raise _wrong(f"tool_choice.tools must be a list of 1 to {MAX_TOOLS} functions.")
    chosen = [_function(each, names, f"tool_choice.tools[{i}]") for i, each in enumerate(allowed)]
    return {"type": kind, "mode": mode, "tools": chosen}


def _function(given: Any, names: Sequence[Any], where: str) -> dict[str, Any]:
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in names:
        listed = ", ".join(map(str, names)) or "none"
        raise _wrong(f"{where}.name is {name!r:.80}; the tools are {listed:.200}.")
    return {"type": "function", "name": name}


def _wrong(message: str) -> RequestError:
    return RequestError(message, "tool_choice")


def chat_tools(
    tools: list[dict[str, Any]], choice: str | dict[str, Any]
) -> tuple[list[Any] | None, str | dict[str, Any]]:
    """Convert tools and choice to a chat's. If the choice allows only some tools, the others are
    left out."""
    if isinstance(choice, dict) and choice["type"] == "function":
        choice = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(choice, dict):
        names = [each["name"] for each in choice["tools"]]
        tools, choice = [tool for tool in tools if tool["name"] in names], str(choice["mode"])
    found = [
        tool if tool["type"] == KIND
        else {"type": "function", "function": {n: tool[n] for n in _FIELDS}}
        for tool in tools
    ]  # fmt: skip
    return found or None, choice
