"""ToolLoop: a gen with tools. The model makes calls, reads their results and continues.

    assistant: words and calls  ->  the program's functions, in parallel  ->  a tool turn for each
        ^                                                                          |
        +--------------------------------------------------------------------------+

The loop ends with the first turn without calls, whose words become the gen's variable, or with a
call that the program must answer, because its tool has no function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sglang.backend.output_constraint import OutputConstraint
from sglang.backend.tool_invocation import ToolAnswer, ToolInvocation
from sglang.errors import SglangError, ToolError, Unsupported
from sglang.ir.chat_template import ChatTemplate, Message
from sglang.ir.nodes import ConstantText, Gen, RoleBegin, RoleEnd, RunTool
from sglang.run.interpreter import Interpreter, Steps
from sglang.run.live_nodes import LiveSteps
from sglang.run.stream import Stream, TextSegment
from sglang.run.typed import Typed
from sglang.tools.tool_call import CallValue, ModelToolCall, answered
from sglang.tools.tool_request import ToolDialect, ToolRequest, verify_params

CALLS = "_calls"
ASSISTANT, TOOL = "assistant", "tool"
UNTRACED = (
    "gen(tools=...) asks the model until it calls no more, which only a run knows; run the program "
    "itself, or use tool(name, function, of), which is traced"
)


def with_tools(gen: Gen, request: ToolRequest) -> LiveSteps:
    """Return the node of a gen whose model may call tools."""
    name = gen.name
    defines = () if name is None else (name, name + CALLS)

    def steps(interpreter: Interpreter, model_type: str) -> Steps:
        return ToolLoop(interpreter, gen, request, model_type).steps()

    return LiveSteps(steps, UNTRACED, defines)


@dataclass
class ToolLoop:
    """One visit of a gen with tools."""

    interpreter: Interpreter
    gen: Gen
    request: ToolRequest
    model_type: str
    calls: list[ModelToolCall] = field(default_factory=list)

    @property
    def stream(self) -> Stream:
        return self.interpreter.stream

    def steps(self) -> Steps:
        """Visit the gen. Raise ToolError at the limit of rounds, and the errors of the backend's
        calls."""
        params = self.gen.params.over(self.interpreter.defaults)
        verify_params(params)
        own_turn = self._verify_turn()
        if own_turn:
            yield from self._visit(RoleBegin(ASSISTANT))
        dialect = ToolDialect(self.interpreter.backend, self.request)
        round = 0
        while True:
            choice = self.request.after(round)
            words, meta, calls, answer = yield from self._turn(dialect, choice, round)
            if not calls:
                break
            if round == self.request.max_rounds:
                raise ToolError(
                    f"the model has called tools in {round} turns and calls {calls[0].name!r} "
                    f"again; max_tool_rounds is {round}: raise it, or tell the model when to stop"
                )
            round += 1
            calls = yield from self._answered(calls)
            self.calls += calls
            if not all(call.result is not None for call in calls):
                own_turn = yield from self._left(calls, own_turn)
                break
            yield from self._visit(RoleEnd(ASSISTANT))
            yield from self._results(calls)
            yield from self._visit(RoleBegin(ASSISTANT))
        self._define(words, meta, answer, params.max_new_tokens)
        assert self.stream.tools is not None
        self.stream.tools = replace(self.stream.tools, choice="none")
        if own_turn:
            yield from self._visit(RoleEnd(ASSISTANT))

    def _visit(self, node: Any) -> Steps:
        yield from self.interpreter.visit(node) or ()

    def _verify_turn(self) -> bool:
        """Return True if the gen must open its own turn. Raise SglangError if it cannot."""
        stream = self.stream
        if stream.role == ASSISTANT:
            return False
        if stream.role is not None:
            raise SglangError(
                f"gen(tools=...) stands in a turn of role {stream.role!r}; close it, the model "
                "calls tools in its own: s += assistant(gen(...))"
            )
        if not stream.messages:
            raise Unsupported(
                "gen(tools=...) needs turns, and this state has none; begin with "
                "s += user(question)"
            )
        return True

    def _turn(
        self, dialect: ToolDialect, choice: str, round: int
    ) -> Generator[
        Any, Any, tuple[str, dict[str, Any], list[ModelToolCall], OutputConstraint | None]
    ]:
        """Generate one turn. Return its words, meta_info, calls and the answer's constraint."""
        stream, backend = self.stream, self.interpreter.backend
        offered = self.request.offered(stream.tools, choice)
        at, text = introduction_in(
            stream.text, stream.messages, backend.chat_template, dialect.introduction(offered)
        )
        stream.tools = replace(offered, introduction=text, at=at)
        params, answer = dialect.held(
            self.gen.params.over(self.interpreter.defaults), choice, backend
        )
        start, opening = len(stream.text), stream.content(stream.role_start)
        gen = Gen(self.gen.name, params)
        yield from self.interpreter.asked(gen, params, None, self.model_type, named=False)
        segment = stream.segments[-1] = stream.segments[-1]._replace(name=self.gen.name)
        meta = segment.meta or {}
        made = sum(len(m.get("tool_calls") or ()) for m in stream.messages)
        words, calls = stream.text[start:], list[ModelToolCall]()
        if choice != "none":
            words, calls = dialect.read(words, meta, made)
        if choice not in ("auto", "none") and not calls:
            raise ToolError(f"tool_choice is {choice!r} and the model has called no tool")
        if calls:
            self._record(dialect, opening, words, calls)
        return words, meta, [replace(call, round=round) for call in calls], answer

    def _record(
        self, dialect: ToolDialect, opening: Any, words: str, calls: Sequence[ModelToolCall]
    ) -> None:
        """Store the calls in the turn's message; append them to the text if a service made them."""
        content = opening + words if isinstance(opening, str) else [*opening, words]
        sent = [call.sent for call in calls]
        self.stream.turn_fields = {"content": content, "tool_calls": sent}
        if dialect.service:
            self.stream.text += dialect.written(calls)

    def _answered(self, calls: Sequence[ModelToolCall]) -> Generator[Any, Any, list[ModelToolCall]]:
        """Run the functions of ``calls`` in parallel. Return the calls with their results."""
        found: list[ModelToolCall] = []
        request = self.request

        async def run() -> list[str | None]:
            found[:] = await answered(calls, request.tools, request.timeout)
            return [call.result for call in found]

        names = ", ".join(call.name for call in calls)
        node = RunTool((self.gen.name or "") + CALLS, names)
        texts = tuple(call.arguments for call in calls)
        answer: ToolAnswer = yield ToolInvocation(self.stream.prompt(), node, _ignoring(run), texts)
        return found or [self._rehearsed(call, answer.text) for call in calls]

    def _rehearsed(self, call: ModelToolCall, text: str) -> ModelToolCall:
        """Return the call of a rehearsal, whose function was not run; ``text``: its result."""
        named = [tool for tool in self.request.tools if tool.name == call.name]
        open_ = bool(named) and named[0].function is None
        return replace(call, result=None if open_ else text)

    def _results(self, calls: Sequence[ModelToolCall]) -> Steps:
        """Append a turn for the result of each call that has one."""
        stream = self.stream
        for call in calls:
            if call.result is None:
                continue
            yield from self._visit(RoleBegin(TOOL))
            start = len(stream.text)
            yield from self._visit(ConstantText(call.result))
            meta = {"tool": call.name, "e2e_latency": call.seconds}
            stream.segments.append(TextSegment(TOOL, start, len(stream.text), call.name, meta))
            stream.turn_fields = {"tool_call_id": call.id}
            yield from self._visit(RoleEnd(TOOL))

    def _left(self, calls: Sequence[ModelToolCall], own_turn: bool) -> Generator[Any, Any, bool]:
        """End at calls that the program must answer. Return True if the turn is still open."""
        if any(call.result is not None for call in calls):
            yield from self._visit(RoleEnd(ASSISTANT))
            yield from self._results(calls)
            if own_turn:
                return False
            yield from self._visit(RoleBegin(ASSISTANT))
        return own_turn

    def _define(
        self, words: str, meta: dict[str, Any], answer: OutputConstraint | None, limit: int | None
    ) -> None:
        if (name := self.gen.name) is None:
            return
        stream, typed = self.stream, None
        if answer is not None:
            typed = Typed(answer, limit, self.interpreter.location)
        stream.define(name, words, meta, typed)
        metas = [
            {"index": index, "round": call.round, "e2e_latency": call.seconds}
            for index, call in enumerate(self.calls)
        ]
        plain = [call.plain for call in self.calls]
        stream.define(name + CALLS, plain, metas, CallValue(self.calls))  # type: ignore[arg-type]


def _ignoring(run: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that ignores its arguments, the calls' texts, and awaits ``run``."""

    async def function(*_: str) -> Any:
        return await run()

    return function


def introduction_in(
    text: str, messages: Sequence[Message], template: ChatTemplate, introduction: str
) -> tuple[int, str]:
    """Return the offset in a prompt's ``text`` for the introduction of tools, and the text to
    insert: at the end of a leading system turn, or as a new system turn. ``messages``: the
    finished turns; without any, the text ends in an open turn."""
    if not introduction:
        return 0, ""
    first = messages[0] if messages else {"role": ASSISTANT, "content": ""}
    before, _ = template.around(first["role"], [])
    at = text.find(before) if messages else text.rfind(before)
    if first["role"] == "system":
        said = _text(first["content"], template)
        at = text.find(before + said) + len(before + said)
        return at, ("\n\n" + introduction if said else introduction)
    opening, closing = template.roles["system"]
    if template.fold_system and first["role"] == "user":
        at += len(before)
    return at, opening + introduction + closing


def _text(content: Any, template: ChatTemplate) -> str:
    if isinstance(content, str):
        return content
    return "".join(p if isinstance(p, str) else template.marker(p.kind) for p in content)
