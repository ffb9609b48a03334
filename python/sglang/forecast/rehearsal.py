"""Rehearsal: runs programs to their end with answers of a script instead of a backend."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from sglang.backend.base import Backend, Call, Choose, Commit, Completion, Prompt
from sglang.backend.mock import decided
from sglang.backend.output_constraint import OutputConstraint
from sglang.backend.tool_invocation import ToolAnswer, ToolInvocation
from sglang.compile.tracer import TracedStreams
from sglang.errors import SglangError, Unsupported
from sglang.ir.nodes import REASONING, Gen, Node, Select
from sglang.ir.params import GenParams, strings
from sglang.ir.source_location import Location, caller
from sglang.run.api_speculation import Pending
from sglang.run.interpreter import NO_COST, Interpreter, Steps
from sglang.run.live_nodes import StartForks
from sglang.run.run_scope import Run
from sglang.run.stream_executor import StreamExecutor
from sglang.state import Program, ProgramState

Answers = Mapping[str, str | Sequence[str]]

FINISH = {"type": "stop", "matched": None}
MAX_CALLS = 1000


class RehearsedRequest(NamedTuple):
    """One call: title, location of its statement, and the body that would be sent. A tool's body is
    its name and arguments."""

    title: str
    location: Location
    body: dict[str, Any]


class Endless(BaseException):
    """The program has made too many calls. Not an Exception, so that programs do not catch it."""


class Script:
    """The answers of a rehearsal, and the requests of the program.

    Args:
        answers: by variable name a text, or several texts that are used in turn; the last one is
            repeated.
    """

    def __init__(self, answers: Answers) -> None:
        if not isinstance(answers, Mapping):
            raise TypeError(f"answers is {answers!r:.60}; give a dict of texts by name")
        for name, answer in answers.items():
            texts = [answer] if isinstance(answer, (str, int, float)) else list(answer or ())
            if not texts or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"the answer for {name!r} is {answer!r}; give a text or several")
        self.answers = answers
        self.requests: list[RehearsedRequest] = []
        self._used: Counter[str] = Counter()

    def note(self, title: str, body: dict[str, Any], call: Call) -> None:
        """Record a request. A request without a body would not be sent and is ignored."""
        if body:
            self._kept(title, body)

    def _kept(self, title: str, body: dict[str, Any]) -> None:
        if len(self.requests) == MAX_CALLS:
            raise Endless(
                f"the program has made {MAX_CALLS} calls and goes on, at {caller()}; generated "
                "values stand as ⟨name⟩ here: give answers={'name': text} for those that end it"
            )
        self.requests.append(RehearsedRequest(title, caller(), body))

    def returned(self, call: ToolInvocation) -> str:
        """Record a call of a tool, which is not run. Return the text that replaces its result."""
        body = {"tool": call.node.tool, "of": list(call.arguments)}
        self._kept(_title("tool", call.node.name), body)
        return self.text(call.node.name)

    def replied(self, texts: list[str]) -> None:
        """Note the texts that answered the last gen."""

    def text(self, name: str | None, number: int = 0) -> str:
        """Return the next text of a variable. ``number``: index of the text among n completions."""
        if name is not None and name in self.answers:
            answer = self.answers[name]
            texts = [answer] if isinstance(answer, str) else answer
            self._used[name] += 1
            return texts[min(self._used[name], len(texts)) - 1]
        label = name or f"gen {len(self.requests)}"
        return f"⟨{label} {number + 1}⟩" if number else f"⟨{label}⟩"

    def untake(self, names: Sequence[str | None]) -> None:
        """Undo the last use of a text for each of these variables."""
        self._used.subtract(name for name in names if name is not None and name in self.answers)

    def option(self, name: str | None, options: Sequence[str]) -> str:
        """Return the option that a select takes. Raise SglangError for an unknown option."""
        if name not in self.answers:
            return options[0]
        if (text := self.text(name)) not in options:
            raise SglangError(f"the answer for {name!r} is {text!r}, none of {list(options)}")
        return text

    def carry_out(
        self,
        program: Program,
        backend: Backend,
        args: Sequence[Any],
        arguments: Mapping[str, Any],
        defaults: GenParams,
    ) -> ProgramState:
        """Run a program to its end with this script's answers. Return its state."""
        backend = Absent(backend)
        run = Run(spec_tokens=program.num_api_spec_tokens or 0)
        executor = StreamExecutor(backend, defaults, run=run, use_thread=False)
        executor.interpreter = Rehearsal(executor.interpreter, self)
        state = ProgramState(executor)
        made = program.func(state, *args, **{**program.bound, **arguments})
        state.ret_value = _awaited(made) if program.is_async else made
        executor.run.finish()
        return state

    def check_used(self) -> None:
        """Raise SglangError for an answer that no call used."""
        unused = [name for name in self.answers if name not in self._used]
        if unused:
            raise SglangError(f"no call asks for {unused[0]!r}, for which there is an answer")


class Absent(Backend):
    """A backend with the properties of ``real`` that a program's flow depends on. Calls raise."""

    def __init__(self, real: Backend) -> None:
        self._real = real
        self.resemble(real)

    def request(self, call: Call) -> dict[str, Any]:
        return self._real.request(call)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        raise self.lacks("commit")

    def lacks(self, primitive: str, instead: str = "") -> Unsupported:
        return Unsupported(
            f"a {primitive} of a program that a compiled one calls is not explained; explain the "
            "Python program instead"
        )


class Stage(TracedStreams):
    """Rehearses programs that the rehearsed program runs."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def call(
        self,
        program: Program,
        args: Sequence[Any],
        arguments: Mapping[str, Any],
        params: GenParams,
        *,
        backend: Any = None,
        stream: bool = False,
    ) -> ProgramState:
        """Rehearse ``program.run(...)`` with the same script."""
        chosen = program.resolved(backend)
        return self._script.carry_out(program, chosen, args, arguments, params)


class ScriptedReply(NamedTuple):
    """Answer to the next call. ``text(number)`` returns text ``number`` of its n completions."""

    name: str | None
    text: Callable[[int], str]
    meta: dict[str, Any]


class Rehearsal(Interpreter):
    """Interpreter whose calls a script answers. The backend is never called."""

    def __init__(self, real: Interpreter, script: Script) -> None:
        super().__init__(
            real.backend,
            real.stream,
            real.defaults,
            real.usage,
            speculation=real.speculation,
            spec_tokens=real.spec_tokens,
        )
        self._script = script
        self._node: Node | None = None
        self._reply = ScriptedReply(None, partial(script.text, None), {})

    def visit(self, node: Node) -> None:
        """Visit the node and answer all of its calls."""
        if isinstance(node, StartForks):
            for child in node.children:
                child.interpreter = Rehearsal(child.interpreter, self._script)
        self._node, answer = node, None
        if (steps := super().visit(node)) is not None:
            with suppress(StopIteration):
                while True:
                    answer = self._answer(steps.send(answer))

    def asked(
        self,
        node: Gen,
        params: GenParams,
        constraint: OutputConstraint | None,
        model_type: str = "",
        named: bool = True,
    ) -> Steps:
        """See ``Interpreter.asked``. Constraints are checked for given answers only."""
        held = constraint if node.name in self._script.answers else None
        thought = self._thought(node.name) if model_type else {}
        self._reply = ScriptedReply(node.name, partial(self._script.text, node.name), thought)
        yield from super().asked(node, params, held, model_type, named)

    def _thought(self, name: str | None) -> dict[str, Any]:
        return {"reasoning_content": self._script.text((name or "") + REASONING)}

    def _speculated(self, name: str | None, params: GenParams) -> Steps:
        """Answer with text up to the stop. The text beyond is unknown, so no call is saved."""
        stop = strings(params.stop)[0]
        meta = {"finish_reason": {"type": "length", "length": 1}}
        self._reply = ScriptedReply(name, lambda _: self._script.text(name) + stop, meta)
        yield from super()._speculated(name, params)

    def _one_reply(
        self, params: GenParams, pattern: list[Pending | str]
    ) -> Generator[Call, Any, list[Completion]]:
        """Answer the one reply with a text that follows the pattern."""
        names = [item.name for item in pattern if isinstance(item, Pending)]
        shown = ", ".join(filter(None, names))
        self._reply = ScriptedReply(shown, lambda _: self._following(pattern), {})
        found = yield from super()._one_reply(params, pattern)
        self._script.untake(names[len(found) :])
        return found

    def _following(self, pattern: list[Pending | str]) -> str:
        text = ""
        for item, after in zip(pattern, [*pattern[1:], ""]):
            if isinstance(item, str):
                text += item
                continue
            text += self._script.text(item.name)
            stops = strings(item.params.stop)
            if stops and not (isinstance(after, str) and after.startswith(stops)):
                text += stops[0]
        return text

    def _answer(self, call: Call | ToolInvocation) -> Any:
        if isinstance(call, ToolInvocation):
            return ToolAnswer(self._script.returned(call), 0.0)
        body, (name, text, meta) = self.backend.request(call), self._reply
        if isinstance(call, Commit):
            self._script.note("commit", body, call)
            return NO_COST
        if isinstance(call, Choose):
            assert isinstance(self._node, Select)
            option = self._script.option(self._node.name, call.options)
            self._script.note(_title("select", self._node.name), body, call)
            return decided(option, call.options, call.method)
        self._script.note(_title("gen", name), body, call)
        known = {**NO_COST, "completion_tokens": 1, "finish_reason": FINISH, **meta}
        stops = strings(call.params.stop)
        texts = [_until(text(number), stops) for number in range(call.params.n or 1)]
        self._script.replied(texts)
        return [Completion(one, known) for one in texts]


def _title(kind: str, name: str | None) -> str:
    return f"{kind} {name}" if name else kind


def _until(text: str, stops: Sequence[str]) -> str:
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]


def _awaited(body: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop of a new thread, as the caller may be in a loop."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, asyncio.run, body).result()
