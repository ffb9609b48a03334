"""Native calls of DSPy: its tools, calls and results as those of ``gen(tools=...)``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dspy import lm15

from sglang.backend.base import Backend, Completion, Prompt
from sglang.errors import ToolError
from sglang.ir.params import GenParams
from sglang.semantics.tool_calls.tool_formats import format_named
from sglang.tools.program_tool import arguments_shown
from sglang.tools.tool_loop import introduction_in
from sglang.tools.tool_request import ToolDialect, request_of


class DspyTools:
    """The tools of one request, offered to a backend.

    Raises:
        UnsupportedFeatureError: a built-in tool of a service, or calls that must be one by one.
    """

    def __init__(self, request: Any, backend: Backend) -> None:
        chosen = request.config.tool_choice or lm15.ToolChoice()
        for tool in request.tools:
            if not isinstance(tool, lm15.FunctionTool):
                raise lm15.UnsupportedFeatureError(
                    f"sglang has no built-in tool {tool.name!r}; give functions", feature="tools"
                )
        if chosen.parallel is False:
            raise lm15.UnsupportedFeatureError(
                "sglang cannot hold a model to one call a turn; leave parallel_tool_calls out",
                feature="config.tool_choice",
            )
        named = set(chosen.allowed or (tool.name for tool in request.tools))
        definitions = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
            for t in request.tools
            if t.name in named
        ]
        single = chosen.mode == "required" and len(definitions) == 1
        choice = definitions[0]["name"] if single else chosen.mode
        self._request = request_of(definitions, choice)
        self._dialect, self._backend = ToolDialect(backend, self._request), backend

    def offered(self, prompt: Prompt, params: GenParams) -> tuple[Prompt, GenParams]:
        """The prompt with the tools in it, and the parameters that hold the model to them."""
        choice, template = self._request.choice, self._backend.chat_template
        self._made = sum(len(m.get("tool_calls") or ()) for m in prompt.messages)
        offered = self._request.offered(None, choice)
        at, text = introduction_in(
            prompt.text, prompt.messages, template, self._dialect.introduction(offered)
        )
        prompt = replace(offered, introduction=text, at=at).introduced(prompt)
        return prompt, self._dialect.held(params, choice, self._backend)[0]

    def parts(self, completion: Completion) -> tuple[Any, ...]:
        """The words of a completion and its calls."""
        if self._request.choice == "none":
            return (lm15.TextPart(completion.text),)
        try:
            words, calls = self._dialect.read(completion.text, completion.meta, self._made)
        except ToolError as error:
            raise lm15.ProviderError(str(error)) from error
        said = (lm15.TextPart(words),) if words or not calls else ()
        made = (
            lm15.ToolCallPart(call.id, call.name, arguments_shown(call.arguments)) for call in calls
        )
        return (*said, *made)


def call_fields(parts: Sequence[Any]) -> dict[str, Any]:
    """The calls in a message of the assistant, as a turn of ours holds them; {} without calls."""
    calls = [
        {"id": part.id, "type": "function",
         "function": {"name": part.name, "arguments": json.dumps(part.input, ensure_ascii=False)}}
        for part in parts
        if isinstance(part, lm15.ToolCallPart)
    ]  # fmt: skip
    return {"tool_calls": calls} if calls else {}


def written(backend: Backend, fields: dict[str, Any]) -> str:
    """The calls of ``call_fields`` in the format of a backend's model."""
    if not fields:
        return ""
    functions = [call["function"] for call in fields["tool_calls"]]
    form = format_named(backend.tool_format)
    return form.written([(f["name"], json.loads(f["arguments"])) for f in functions])


def result_text(part: Any) -> str:
    """The text of a tool's result. Raise UnsupportedFeatureError where it is not text alone."""
    for one in part.content:
        if not isinstance(one, lm15.TextPart):
            raise lm15.UnsupportedFeatureError(
                f"sglang cannot show the model a {one.type} as a tool's result; give text",
                feature="messages",
            )
    return "".join(one.text for one in part.content)
