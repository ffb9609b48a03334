"""Interpreter: the only visitor of nodes. A handler per node type applies the node to a stream.

The interpreter is sequential and uses neither threads nor event loops. A handler that needs the
backend is a generator: it yields calls and receives their answers. ``stream_executor`` decides
which thread or event loop waits for a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

from sglang.backend import base
from sglang.backend.base import Backend, Call, Choose, Complete, Completion, Prompt
from sglang.backend.output_constraint import OneOf, OutputConstraint, constrained
from sglang.backend.tool_invocation import ToolInvocation
from sglang.errors import SglangError, Unsupported
from sglang.ir.choices import METHODS, ChoicesMethod
from sglang.ir.nodes import (
    REASONING,
    Chain,
    ConstantText,
    Flush,
    Gen,
    Image,
    NamedVariable,
    Node,
    Parallel,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    SeparateReasoning,
    SetVariable,
    Transformed,
)
from sglang.ir.params import GenParams, strings
from sglang.ir.prompt_media import medium
from sglang.ir.source_location import Location
from sglang.run import api_speculation
from sglang.run.api_speculation import Pending, Speculation
from sglang.run.live_nodes import BoundTool, LiveSteps, StartForks
from sglang.run.retry import answer_of, valid_completions
from sglang.run.run_scope import Usage
from sglang.run.stream import Stream, TextSegment
from sglang.run.typed import Typed, verify
from sglang.semantics import reasoning
from sglang.semantics.transforms import text_of, transformed, transforms_of

Steps: TypeAlias = Generator[Call | ToolInvocation, Any, None]
NO_COST = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}


class Interpreter:
    """Visits nodes in order and changes ``stream``.

    Args:
        defaults: parameters that a ``gen`` inherits, with a value for each parameter.
        spec_tokens: tokens by which a call of an API model may continue past its stop; 0: none.
        streaming: show generated text while it grows.
        changed: called when streamed text has grown.

    Attributes:
        location: line of the program that appended the current node.
    """

    def __init__(
        self,
        backend: Backend,
        stream: Stream,
        defaults: GenParams,
        usage: Usage,
        *,
        speculation: Speculation | None = None,
        spec_tokens: int = 0,
        streaming: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.stream = stream
        self.defaults = defaults
        self.usage = usage
        self.speculation = speculation or Speculation()
        self.spec_tokens = spec_tokens
        self.streaming = streaming
        self.location: Location | None = None
        self._changed = changed

    def visit(self, node: Node) -> Steps | None:
        """Return a generator of the node's calls, or None if the node needs none and is done.

        Raise the errors of the backend, and SglangError for a node without a handler.
        """
        handler = self.handlers.get(type(node))
        if handler is None:
            raise SglangError(f"the interpreter cannot execute {type(node).__name__}")
        if self.stream.deferred and not isinstance(node, (ConstantText, Gen, Flush)):
            return self._settled(handler, node)
        return handler(self, node)

    def blocks(self, node: Node) -> bool:
        """Return True if a visit of the node may call the backend."""
        return node.blocking or bool(self.stream.deferred)

    def _settled(self, handler: Callable[..., Steps | None], node: Node) -> Steps:
        """Visit the deferred gens, then the node."""
        yield from self._flush(Flush())
        yield from handler(self, node) or ()

    # Text and media

    def _text(self, node: ConstantText) -> None:
        stream = self.stream
        if stream.deferred:
            stream.deferred.append(node.text)
            return
        if node.text.strip():
            self._inside_a_turn(repr(node.text[:40]))
        stream.text += node.text
        if stream.leftover is not None:
            stream.leftover = stream.leftover.after(node.text)
            self.speculation.add(mismatches=stream.leftover is None)

    def _image(self, node: Image) -> None:
        stream, found = self.stream, medium(node.kind, node.source, node.num_frames)
        self._inside_a_turn(found.kind)
        stream.leftover = None
        start = len(stream.text)
        stream.text += self.backend.chat_template.marker(found.kind)
        stream.media.append((start, len(stream.text), found))
        stream.segments.append(
            TextSegment("media", start, len(stream.text), None, {"media": found})
        )

    def _parallel(self, node: Parallel) -> None:
        stream, ranges = self.stream, []
        stream.leftover = None
        for text in filter(None, node.texts):
            ranges.append((len(stream.text), len(stream.text) + len(text)))
            stream.text += text
        if ranges:
            stream.parallel.append(tuple(ranges))
        stream.messages += node.messages

    def _inside_a_turn(self, what: str) -> None:
        """Raise Unsupported for ``what`` outside the turns if the backend is sent only turns."""
        stream = self.stream
        if self.backend.messages_only and stream.messages and stream.role is None:
            raise Unsupported(
                f"{what} stands outside of the turns, and {self.backend.name} is sent the turns "
                "alone; append it inside user(...), assistant(...) or system(...)"
            )

    # Generation

    def _gen(self, node: Gen, model_type: str = "") -> Steps | None:
        params, constraint = constrained(node.params, self.defaults)
        if constraint is not None:
            if constraint.kind in self.backend.constraints:
                params = constraint.resolve(params)
            else:
                params = constraint.free(params, self.backend.continues)
        able = self.spec_tokens and not model_type and constraint is None
        if able and api_speculation.possible(params):
            if self.backend.speculates == "chat" and self.stream.role == "assistant":
                self.stream.deferred.append(Pending(node.name, params))
                return None
            if self.backend.speculates == "text" and strings(params.stop):
                return self._speculated(node.name, params)
        if self.stream.deferred:
            return self._settled(lambda _, gen: self.asked(gen, params, constraint), node)
        return self.asked(node, params, constraint, model_type)

    def asked(
        self,
        node: Gen,
        params: GenParams,
        constraint: OutputConstraint | None,
        model_type: str = "",
        named: bool = True,
    ) -> Steps:
        """Visit the gen by separate calls, without speculation. ``named``: set its variable."""
        name = node.name if named else None
        self._inside_a_turn("gen")
        stream, start = self.stream, len(self.stream.text)
        stream.leftover = None
        params = self._with_template_stops(params)
        typed = Typed(constraint, params.max_new_tokens, self.location) if constraint else None
        if constraint is not None and not self.backend.enforces(constraint):
            template, tell = self.backend.chat_template, self.usage.add
            completions = yield from valid_completions(
                self._prompt(params), params, constraint, model_type, template, tell
            )
        elif self.streaming and (params.n or 1) == 1:
            if name is not None:
                stream.describe(name, {}, typed)
            show = partial(self._show, name, stream.text, model_type)
            completions = yield base.StreamCall(self._prompt(params), params, show)
        else:
            completions = yield Complete(self._prompt(params), params)
        self._account(completions)
        completions = [answer_of(completion, model_type) for completion in completions]
        if isinstance(constraint, OneOf):
            for found in completions:  # a truncated choice is not a value
                verify(constraint, found.text, found.meta, params.max_new_tokens)
        self._write(name, completions, start, (params.n or 1) > 1, typed)

    def _prompt(self, params: GenParams) -> Prompt:
        """Return the stream's prompt, with the adapter of ``params``."""
        return dataclasses.replace(self.stream.prompt(), lora_path=params.lora_path or "")

    def _with_template_stops(self, params: GenParams) -> GenParams:
        stops = dict.fromkeys((*strings(params.stop), *self.backend.chat_template.stop))
        return dataclasses.replace(params, stop=tuple(stops)) if stops else params

    def _show(self, name: str | None, before: str, model_type: str, so_far: Completion) -> None:
        text = (
            reasoning.split(so_far.text, model_type, growing=True)[1] if model_type else so_far.text
        )
        self.stream.text = before + text
        if name is not None:
            self.stream.meta[name] = so_far.meta
            self.stream.partial[name] = text
        self._changed()

    def _account(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            self.usage.add(completion.meta)

    def _write(
        self,
        name: str | None,
        completions: Sequence[Completion],
        start: int,
        several: bool = False,
        typed: Typed | None = None,
    ) -> None:
        """Append the first text at ``start``. Define variable ``name``: the text, or a list."""
        stream = self.stream
        texts, metas = [c.text for c in completions], [c.meta for c in completions]
        stream.text = stream.text[:start] + texts[0]
        stream.segments.append(TextSegment("gen", start, len(stream.text), name, metas[0]))
        if name is not None:
            thoughts = [meta.get("reasoning_content") for meta in metas]
            if thoughts[0] is not None:
                stream.define(name + REASONING, thoughts if several else thoughts[0])
            meta = metas if several else metas[0]
            stream.define(name, texts if several else texts[0], meta, typed)

    def _reasoned(self, node: SeparateReasoning) -> Steps:
        for part in node.parts:
            own = isinstance(part, (Gen, LiveSteps))
            handler = self.handlers[type(part)]
            yield from (handler(self, part, node.model_type) if own else self.visit(part)) or ()

    # Speculation

    def _speculated(self, name: str | None, params: GenParams) -> Steps:
        """Take the gen's text from an earlier call; else call the model past the gen's stop."""
        stream, template = self.stream, self.backend.chat_template
        if stream.leftover is not None and (taken := stream.leftover.take(params)) is not None:
            meta = {"finish_reason": taken[1], **NO_COST, "speculated": True}
            rest = stream.leftover.rest(taken[2])
            self._write(name, [Completion(taken[0], meta)], len(stream.text))
            self.speculation.add(saved=1, tokens=rest.prompt_tokens)
            stream.leftover = rest
            return
        asked = api_speculation.running_on(params, self.spec_tokens, template.stop)
        (completion,) = yield Complete(stream.prompt(), asked)
        self._account([completion])
        self.speculation.add(calls=1)
        left = api_speculation.leftover(completion.text, completion.meta, asked)
        taken = left.take(params)
        if taken is None:
            self.speculation.add(mismatches=1)
            yield from self.asked(Gen(name), params, None)
            return
        meta = {**completion.meta, "finish_reason": taken[1]}
        self._write(name, [Completion(taken[0], meta)], len(stream.text))
        stream.leftover = left.rest(taken[2])

    def _flush(self, _: Flush) -> Steps:
        """Request one reply for the deferred gens; gens that do not match get separate calls."""
        stream = self.stream
        turn, stream.deferred = stream.deferred, []
        if not turn:
            return
        gens = [item for item in turn if isinstance(item, Pending)]
        opening = stream.text[stream.role_start :]
        found: list[Completion] = []
        if len(gens) > 1 or opening:
            found = yield from self._one_reply(gens[0].params, [opening, *turn])
            self.speculation.add(mismatches=len(found) < len(gens))
        for item in turn:
            if isinstance(item, str):
                stream.text += item
            elif found:
                self._write(item.name, [found.pop(0)], len(stream.text))
            else:
                yield from self.asked(Gen(item.name), item.params, None)

    def _one_reply(
        self, params: GenParams, pattern: list[Pending | str]
    ) -> Generator[Call, Any, list[Completion]]:
        """Request one reply to the earlier turns. Return its matches of the pattern's gens."""
        asked = api_speculation.running_on(params, self.spec_tokens, ())
        (reply,) = yield Complete(self.stream.prompt(turn=False), asked)
        self._account([reply])
        left = api_speculation.leftover(reply.text, reply.meta, asked)
        found = api_speculation.match(pattern, left)
        saved = max(len(found) - 1, 0)
        self.speculation.add(calls=1, saved=saved, tokens=saved * left.prompt_tokens)
        metas = [reply.meta] + [{**NO_COST, "speculated": True}] * saved
        return [
            Completion(text, {**meta, "finish_reason": reason})
            for (text, reason), meta in zip(found, metas)
        ]

    def _select(self, node: Select) -> Steps:
        self._inside_a_turn("select")
        stream, start = self.stream, len(self.stream.text)
        stream.leftover = None
        method = node.method if isinstance(node.method, ChoicesMethod) else METHODS[node.method]
        decision = yield Choose(self._prompt(self.defaults), node.choices, method)
        stream.text += decision.text
        stream.segments.append(
            TextSegment("select", start, len(stream.text), node.name, decision.meta)
        )
        self.usage.add(decision.meta.get("usage", {}))
        if node.name is not None:
            stream.define(node.name, decision.text, decision.meta)

    def _tool(self, node: BoundTool) -> Steps:
        stream, tool = self.stream, node.tool
        if node.of is not None:
            self._have(node.of, f"tool {tool.tool!r}")
        of = tool.of if node.of is None else (stream.variables[node.of],)
        texts = tuple(map(text_of, of))
        answer = yield ToolInvocation(self._prompt(self.defaults), tool, node.function, texts)
        start = len(stream.text)
        self._text(ConstantText(answer.text))
        meta = {"tool": tool.tool, "e2e_latency": answer.seconds}
        stream.segments.append(TextSegment("tool", start, len(stream.text), tool.name, meta))
        stream.define(tool.name, answer.text, meta)

    def _have(self, name: str, what: str) -> None:
        """Raise SglangError if the state lacks variable ``name``, an argument of ``what``."""
        known = self.stream.variables
        if name not in known:
            raise SglangError(
                f"{what} is given variable {name!r:.60}, which this state does not have; it has "
                f"{sorted(known)}. A text is stored first: s['x'] = text"
            )

    # Roles

    def _role_begin(self, node: RoleBegin) -> None:
        stream, template = self.stream, self.backend.chat_template
        if stream.role is not None:
            raise SglangError(
                f"role {node.role!r} begins inside role {stream.role!r}; end that one first"
            )
        if self.backend.messages_only and not stream.messages and stream.text.strip():
            raise Unsupported(
                f"text stands before the first turn, and {self.backend.name} is sent the turns "
                "alone; append it inside system(...) or user(...)"
            )
        prefix, implied = template.opening(node.role, stream.messages)
        stream.text += prefix
        stream.messages += implied
        stream.leftover = None
        stream.role, stream.role_start = node.role, len(stream.text)

    def _role_end(self, node: RoleEnd) -> None:
        stream = self.stream
        if stream.role != node.role:
            raise SglangError(f"role {node.role!r} ends, but the open role is {stream.role!r}")
        _, suffix = self.backend.chat_template.around(node.role, stream.messages)
        content = stream.content(stream.role_start)
        stream.text += suffix
        stream.leftover = None
        stream.messages.append({"role": node.role, "content": content, **stream.turn_fields})
        stream.role, stream.turn_fields = None, {}

    # Variables and forks

    def _scope_begin(self, node: ScopeBegin) -> None:
        self.stream.scopes.append((node.name, len(self.stream.text)))

    def _scope_end(self, node: ScopeEnd) -> None:
        found = [scope for scope in self.stream.scopes if scope[0] == node.name]
        if not found:
            raise SglangError(f"variable scope {node.name!r} ends but was never begun")
        self.stream.scopes.remove(found[-1])
        self.stream.define(node.name, self.stream.text[found[-1][1] :])

    def _set(self, node: SetVariable) -> None:
        self.stream.define(node.name, node.value)

    def _transform(self, node: Transformed) -> None:
        (value,) = node.of
        if isinstance(value, NamedVariable):
            self._have(value.name, f"transform to {node.name!r}")
            value = self.stream.variables[value.name]
        self.stream.define(node.name, transformed(transforms_of(node.transforms), value))

    def _start_forks(self, node: StartForks) -> None:
        for child in node.children:
            child.start(self.stream.copy())

    def _live(self, node: LiveSteps, model_type: str = "") -> Steps:
        return node.steps(self, model_type)

    def _chain(self, node: Chain) -> Steps:
        for part in node.flat():
            yield from self.visit(part) or ()

    handlers: ClassVar[dict[type[Node], Callable[..., Steps | None]]] = {
        Chain: _chain,
        ConstantText: _text,
        Image: _image,
        Parallel: _parallel,
        Gen: _gen,
        SeparateReasoning: _reasoned,
        Flush: _flush,
        Select: _select,
        BoundTool: _tool,
        LiveSteps: _live,
        RoleBegin: _role_begin,
        RoleEnd: _role_end,
        ScopeBegin: _scope_begin,
        ScopeEnd: _scope_end,
        SetVariable: _set,
        Transformed: _transform,
        StartForks: _start_forks,
    }
