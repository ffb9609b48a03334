"""Interpreter: what each node does to a stream, the one visitor of the nodes.

It is sequential and knows no threads: ``executor`` decides when and where a node is visited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sglang.backend.base import Backend, Completion, Prompt
from sglang.choices import METHODS, ChoicesMethod
from sglang.errors import SglangError
from sglang.ir import (
    Commit,
    ConstantText,
    Fork,
    Gen,
    Node,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    SetVariable,
)
from sglang.params import GenParams, strings
from sglang.usage import Usage


@dataclass
class Stream:
    """What one state has written.

    Attributes:
        text: everything the model is shown, template included.
        messages: finished turns, where roles are used.
        role: the open role, its text begins at ``role_start``.
        scopes: where the open variable scopes begin.
        partial: text so far of variables that are being streamed.
        committed: length of the text that the backend was last told to cache.
    """

    text: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    role: str | None = None
    role_start: int = 0
    variables: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    scopes: dict[str, int] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    committed: int = 0

    def copy(self) -> Stream:
        return Stream(
            self.text,
            list(self.messages),
            self.role,
            self.role_start,
            dict(self.variables),
            dict(self.meta),
            dict(self.scopes),
            {},
            self.committed,
        )


class Interpreter:
    """Visits nodes in order, writing to ``stream``.

    Args:
        defaults: parameters that a ``gen`` inherits, complete.
        streaming: show generated text as it grows.
        changed: called when streamed text has grown.
    """

    def __init__(
        self,
        backend: Backend,
        stream: Stream,
        defaults: GenParams,
        usage: Usage,
        *,
        streaming: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.stream = stream
        self.defaults = defaults
        self.usage = usage
        self.streaming = streaming
        self._changed = changed

    def visit(self, node: Node) -> None:
        """Raises what the backend raises, and SglangError for a node out of place."""
        handler = self.handlers.get(type(node))
        if handler is None:
            raise SglangError(f"the interpreter cannot execute {type(node).__name__}")
        handler(self, node)

    def prompt(self) -> Prompt:
        """The stream as the backend sees it; the open role is its last message."""
        stream = self.stream
        messages: list[Any] = stream.messages
        if stream.role is not None and stream.role_start < len(stream.text):
            content = stream.text[stream.role_start :]
            messages = [*messages, {"role": stream.role, "content": content}]
        return Prompt(stream.text, tuple(messages))

    def _text(self, node: ConstantText) -> None:
        self.stream.text += node.text

    def _gen(self, node: Gen) -> None:
        params = node.params.over(self.defaults)
        stops = dict.fromkeys((*strings(params.stop), *self.backend.chat_template.stop))
        if stops:
            params = dataclasses.replace(params, stop=tuple(stops))
        if self.streaming and (params.n or 1) == 1:
            completions = [self._streamed(node, params)]
        else:
            completions = self.backend.complete(self.prompt(), params)
            self.stream.text += completions[0].text
        for completion in completions:
            self.usage.add(completion.meta)
        if node.name is not None:
            several = (params.n or 1) > 1
            texts, metas = [c.text for c in completions], [c.meta for c in completions]
            self.stream.meta[node.name] = metas if several else metas[0]
            self.stream.variables[node.name] = texts if several else texts[0]
            self.stream.partial.pop(node.name, None)

    def _streamed(self, node: Gen, params: GenParams) -> Completion:
        stream, before = self.stream, self.stream.text
        completion = Completion("")
        for completion in self.backend.stream(self.prompt(), params):
            stream.text = before + completion.text
            if node.name is not None:
                stream.meta[node.name] = completion.meta
                stream.partial[node.name] = completion.text
            self._changed()
        return completion

    def _select(self, node: Select) -> None:
        method = node.method if isinstance(node.method, ChoicesMethod) else METHODS[node.method]
        decision = self.backend.choose(self.prompt(), node.choices, method)
        self.stream.text += decision.text
        self.usage.add(decision.meta.get("usage", {}))
        if node.name is not None:
            self.stream.meta[node.name] = decision.meta
            self.stream.variables[node.name] = decision.text

    def _role_begin(self, node: RoleBegin) -> None:
        stream, template = self.stream, self.backend.chat_template
        if stream.role is not None:
            raise SglangError(
                f"role {node.role!r} begins inside role {stream.role!r}; end that one first"
            )
        if template.default_system and not stream.messages and node.role != "system":
            self._role_begin(RoleBegin("system"))
            stream.text += template.default_system
            self._role_end(RoleEnd("system"))
        prefix, _ = template.around(node.role, stream.messages)
        stream.text += prefix
        stream.role, stream.role_start = node.role, len(stream.text)

    def _role_end(self, node: RoleEnd) -> None:
        stream = self.stream
        if stream.role != node.role:
            raise SglangError(f"role {node.role!r} ends, but the open role is {stream.role!r}")
        _, suffix = self.backend.chat_template.around(node.role, stream.messages)
        content = stream.text[stream.role_start :]
        stream.text += suffix
        stream.messages.append({"role": node.role, "content": content})
        stream.role = None

    def _scope_begin(self, node: ScopeBegin) -> None:
        self.stream.scopes[node.name] = len(self.stream.text)

    def _scope_end(self, node: ScopeEnd) -> None:
        if node.name not in self.stream.scopes:
            raise SglangError(f"variable scope {node.name!r} ends but was never begun")
        start = self.stream.scopes.pop(node.name)
        self.stream.variables[node.name] = self.stream.text[start:]

    def _set(self, node: SetVariable) -> None:
        self.stream.variables[node.name] = node.value
        self.stream.meta.pop(node.name, None)

    def _commit(self, _: Commit) -> None:
        """Told only where there is new text: it is a hint and costs a call."""
        stream = self.stream
        if len(stream.text) > stream.committed:
            self.usage.add(self.backend.commit(self.prompt()))
            stream.committed = len(stream.text)

    def _fork(self, node: Fork) -> None:
        for child in node.children:
            child.start(self.stream.copy())

    handlers: ClassVar[dict[type[Node], Callable[[Interpreter, Any], None]]] = {
        ConstantText: _text,
        Gen: _gen,
        Select: _select,
        RoleBegin: _role_begin,
        RoleEnd: _role_end,
        ScopeBegin: _scope_begin,
        ScopeEnd: _scope_end,
        SetVariable: _set,
        Commit: _commit,
        Fork: _fork,
    }
