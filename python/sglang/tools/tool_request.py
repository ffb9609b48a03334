"""ToolRequest: the tools of one ``gen``. ToolDialect: their form in prompts, and in replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.backend.base import Backend, PromptTools
from sglang.backend.output_constraint import CONSTRAINTS, OutputConstraint, constraint_of
from sglang.errors import ToolError, Unsupported
from sglang.ir.params import GenParams
from sglang.semantics.tool_calls.deltas import joined
from sglang.semantics.tool_calls.tool_format import Form, Tool, ToolFormat, either, schema
from sglang.semantics.tool_calls.tool_format import constraint_of as tag_of
from sglang.semantics.tool_calls.tool_formats import format_named
from sglang.tools.program_tool import ProgramTool, tools_of
from sglang.tools.tool_call import ModelToolCall

MODES = ("auto", "required", "none")
MAX_ROUNDS = 8
MOST_ROUNDS = 1000
MOST_CALLS = 128  # calls of one turn
MAX_SECONDS = 86_400.0


@dataclass(frozen=True)
class ToolRequest:
    """Tools of a gen.

    Attributes:
        choice: "auto", "required", "none", or the name of the tool that the first turn must call.
        max_rounds: limit of the model's turns with calls that are answered.
        timeout: limit of each call in seconds, None for no limit.
    """

    tools: tuple[ProgramTool, ...]
    choice: str = "auto"
    max_rounds: int = MAX_ROUNDS
    timeout: float | None = None

    def after(self, round: int) -> str:
        """Return the choice of turn ``round``, from 0. Only the first turn can require a call."""
        return "auto" if round and self.choice != "none" else self.choice

    def offered(self, before: PromptTools | None, choice: str) -> PromptTools:
        """Return these tools with the tools ``before``, which earlier turns of the state may have
        called. The result has no introduction yet."""
        named = {one["name"]: one for one in (before.definitions if before else ())}
        named.update({tool.name: tool.definition for tool in self.tools})
        return PromptTools(tuple(named.values()), choice)


def request_of(
    tools: Any, choice: Any = None, max_rounds: int | None = None, timeout: float | None = None
) -> ToolRequest:
    """Return the ToolRequest of ``gen``'s arguments. Raise TypeError or ValueError."""
    found = tools_of(tools)
    if isinstance(choice, Mapping):  # OpenAI's form
        choice = choice.get("function", choice).get("name")
    elif callable(choice):
        choice = getattr(choice, "__name__", choice)
    choice = "auto" if choice is None else choice
    names = [tool.name for tool in found]
    if choice not in (*MODES, *names):
        raise ValueError(
            f"tool_choice is {choice!r:.80}; use {', '.join(MODES)}, or one of the tools "
            f"{', '.join(names):.200}"
        )
    rounds = MAX_ROUNDS if max_rounds is None else max_rounds
    if not isinstance(rounds, int) or isinstance(rounds, bool) or not 1 <= rounds <= MOST_ROUNDS:
        raise ValueError(f"max_tool_rounds is {rounds!r:.60}; it must be from 1 to {MOST_ROUNDS}.")
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and 0 < timeout <= MAX_SECONDS
    ):
        raise ValueError(
            f"tool_timeout is {timeout!r:.60}; give seconds above 0, at most {MAX_SECONDS:.0f}"
        )
    return ToolRequest(found, choice, rounds, timeout)


def verify_params(params: GenParams) -> None:
    """Raise Unsupported for parameters that a gen with tools cannot have."""
    if (params.n or 1) > 1:
        raise Unsupported(
            f"n is {params.n}; a gen with tools has one text: fork the state instead, s.fork(n)"
        )
    for name in ("regex", "ebnf", "structural_tag", "dtype", "one_of"):
        if getattr(params, name) is not None:
            raise Unsupported(
                f"{name} cannot be given with tools; use schema=, which the answer after the "
                "calls then has"
            )


class ToolDialect:
    """Form in which a backend's model reads the tools and writes calls.

    Attributes:
        service: the backend's API has tools; else calls are text in the model's own format.
    """

    def __init__(self, backend: Backend, request: ToolRequest) -> None:
        self.request, self.service = request, backend.calls_tools
        self.format: ToolFormat = format_named(backend.tool_format)
        self._enforced = "structural_tag" in backend.constraints and not self.service
        self._tools = tuple(tool.in_format(i) for i, tool in enumerate(request.tools))

    def introduction(self, offered: PromptTools) -> str:
        """Return the text that describes the tools to the model; "" if the service does so."""
        if self.service:
            return ""
        return self.format.introduction([_shown(i, d) for i, d in enumerate(offered.definitions)])

    def held(
        self, params: GenParams, choice: str, backend: Backend
    ) -> tuple[GenParams, OutputConstraint | None]:
        """Return the parameters to send in a turn of ``choice``, and the answer's constraint."""
        answer = constraint_of(params)
        free = params if answer is None else answer.free(params, backend.continues)
        if self._enforced:
            schema_of = None if answer is None else answer.resolve(params).json_schema
            form = self._form(choice, schema_of)
            if form is None:
                return (params if answer is None else answer.resolve(params)), answer
            tag = tag_of(form)
            return replace(free, structural_tag=tag.text, whitespace_pattern=tag.whitespace), answer
        if answer is not None and answer.kind in backend.constraints:
            return answer.resolve(params), answer
        return free, answer

    def _form(self, choice: str, answer: Any) -> Form | None:
        """Return the enforced form of a turn: calls, or text, or JSON of the answer's schema."""
        if choice == "none":
            return None
        if choice != "auto":
            called = [tool for tool in self._tools if choice in ("required", tool.name)]
            return self.format.calls(called, choice == "required")
        if answer is not None:
            return either(self.format.calls(self._tools, True), schema(answer))
        return self.format.tagged(self._tools)

    def read(
        self, text: str, meta: Mapping[str, Any], first: int
    ) -> tuple[str, list[ModelToolCall]]:
        """Return the words and the calls of a turn. ``first``: number of the state's earlier calls.

        Raise ToolError if a limit has cut a call, or for too many calls.
        """
        if self.service:
            sent = meta.get("tool_calls", ())
            calls = [ModelToolCall(one["id"], one["name"], one["arguments"]) for one in sent]
        else:
            text, calls = self._parsed(text, meta, first)
        if len(calls) > MOST_CALLS:
            raise ToolError(
                f"the model has made {len(calls)} calls in one turn; at most {MOST_CALLS}."
            )
        return text, calls

    def _parsed(
        self, text: str, meta: Mapping[str, Any], first: int
    ) -> tuple[str, list[ModelToolCall]]:
        finish = meta.get("finish_reason")
        cut = isinstance(finish, Mapping) and finish.get("type") == "length"
        parser = self.format.parser(self._tools, any_name=not self._enforced)
        deltas = parser.feed(text)
        inside = parser.cut
        words, found = joined([*deltas, *parser.finish(cut)])
        if cut and inside:
            raise ToolError(f"the call of {found[-1][0]!r} was cut by max_tokens; raise max_tokens")
        return words, [
            ModelToolCall(f"call_{first + i}", name, given) for i, (name, given) in enumerate(found)
        ]

    def written(self, calls: Sequence[ModelToolCall]) -> str:
        """Return the calls of a service's reply as text, for the state's text."""
        return self.format.written([(call.name, call.plain["arguments"]) for call in calls])


def _shown(place: int, definition: Mapping[str, Any]) -> Tool:
    shown = {"type": "function", "function": dict(definition)}
    return Tool(place, definition["name"], definition["parameters"], True, shown)


def verify_select(
    params: GenParams, tools: Any, choice: Any, max_rounds: int | None, timeout: float | None
) -> None:
    """Raise ValueError for parameters that a gen with ``choices`` cannot have, since the scores of
    the choices determine its text."""
    others = {name: getattr(params, name) for name in CONSTRAINTS}
    others["n"] = None if params.n == 1 else params.n
    others |= {"tools": tools, "tool_choice": choice}
    others |= {"max_tool_rounds": max_rounds, "tool_timeout": timeout}
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"{name} is {value!r:.60}, beside choices, of which the likeliest is taken; give "
                "one of the two, or one_of= to sample one of several texts"
            )
