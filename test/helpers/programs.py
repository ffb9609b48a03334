"""Random programs, as data, and a backend that answers and records deterministically."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import Any

import sglang as sgl
from hypothesis import strategies as st
from sglang.backend.base import Backend, Completion
from sglang.ir.chat_template import TEMPLATES
from sglang.ir.choices import Decision
from sglang.ir.params import given

VALUES: dict[str, Any] = {"a": "alpha", "b": "beta"}


class Recorder(Backend):
    """Answers with a digest of the prompt; ``calls`` counts the requests."""

    name = "recorder"
    speculates = "text"

    def __init__(self, template: str = "chatml") -> None:
        self.chat_template = TEMPLATES[template]
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def _note(self, *call: object) -> int:
        with self._lock:
            self.calls[repr(call)] += 1
        return hashlib.md5(repr(call).encode()).digest()[0]

    def complete(self, prompt, params):
        text = f"<{self._note('gen', prompt, given(params))}>"
        more = "" if params.stop else "!" + text  # where it runs on
        return [Completion(text + more)] * (params.n or 1)

    def choose(self, prompt, options, method):
        return Decision(options[self._note("select", prompt, options) % len(options)], {})

    def commit(self, prompt):
        self._note("commit", prompt)
        return {}


# A program is a list of operations; a body inside an operation is a program.
names = st.sampled_from("xyz")
words = st.sampled_from(["", "p ", "q. ", "!", "long text\n"])
tokens = st.sampled_from([None, 16, 64])  # num_api_spec_tokens
sources = st.one_of(
    st.tuples(st.just("text"), words),
    st.tuples(st.just("arg"), st.sampled_from("ab")),
    st.tuples(st.just("var"), st.integers(0, 9)),
)
gens = st.tuples(
    st.just("gen"),
    st.none() | names,
    st.fixed_dictionaries(
        {}, optional={"temperature": st.sampled_from([0.0, 0.5]), "stop": st.just(["!"])}
    ),
)
atoms = st.one_of(
    sources,
    gens,
    st.tuples(st.just("select"), names, st.just(["yes", "no", "maybe"])),
    st.tuples(st.just("set"), names, st.lists(sources, min_size=1, max_size=2)),
)


def programs(depth: int = 2, roles: bool = True, compiled: bool = False) -> st.SearchStrategy:
    """``compiled``: some run compiled programs."""
    if not depth:
        return st.lists(atoms, max_size=4)
    inner = programs(depth - 1, roles, compiled)
    # Branches of a branch cannot be appended once more.
    joins = ["", "gather_variable", *(["concate_and_append"] if depth == 1 else [])]
    kinds = [
        atoms,
        st.tuples(st.just("scope"), names.map(lambda name: name * (depth + 1)), inner),
        st.tuples(
            st.just("fork"), st.lists(inner, min_size=1, max_size=3), st.sampled_from(joins), inner
        ),
        st.tuples(st.just("copy"), inner),
        st.tuples(
            st.just("call"),
            inner,
            st.fixed_dictionaries({}, optional={"top_p": st.just(0.5)}),
            tokens,
        ),
        st.tuples(st.just("inline"), inner),
    ]
    said = programs(depth - 1, False, compiled)
    if compiled:
        kinds.append(st.tuples(st.just("compiled"), said, sources, st.booleans(), tokens))
    if roles:
        kinds.append(st.tuples(st.just("role"), st.sampled_from(["user", "assistant"]), said))
    return st.lists(st.one_of(kinds), max_size=5)


def program_of(operations: list, spec: int | None = None) -> sgl.SglFunction:
    """An SglFunction of arguments a and b that carries out ``operations``."""

    @sgl.function(num_api_spec_tokens=spec)
    def generated(s, a, b):
        readable: list = []
        arguments = {"a": a, "b": b}
        carry_out(s, operations, arguments, readable)
        return {"last": value_of(("var", -1), arguments, readable), "given": [a, 3]}

    return generated


def value_of(source: tuple, arguments: dict, readable: list) -> object:
    """A text, or what stands for one; "" where there is none yet."""
    kind, what = source
    if kind == "text":
        return what
    if kind == "arg":
        return arguments[what]
    if not readable:
        return ""
    state, name = readable[what % len(readable)]
    value = state[name]
    while isinstance(value, list):
        value = next((item for item in value if item is not None), "")
    return value


def carry_out(s, operations: list, arguments: dict, readable: list) -> None:
    for kind, *rest in operations:
        if kind in ("text", "arg", "var"):
            s += value_of((kind, *rest), arguments, readable)
        elif kind == "gen":
            name, params = rest
            s += sgl.gen(name, **params)
            readable += [(s, name)] if name else []
        elif kind == "select":
            s += sgl.select(*rest)
            readable.append((s, rest[0]))
        elif kind == "set":
            name, values = rest
            s[name] = [value_of(value, arguments, readable) for value in values]
            readable.append((s, name))
        elif kind == "scope":
            with s.var_scope(rest[0]):
                carry_out(s, rest[1], arguments, readable)
            readable.append((s, rest[0]))
        elif kind == "role":
            with getattr(s, rest[0])():
                carry_out(s, rest[1], arguments, readable)
        elif kind == "copy":
            with s.copy() as copied:
                carry_out(copied, rest[0], arguments, readable)
        elif kind == "inline":
            body_of(arguments, readable)(s, rest[0])
        elif kind == "call":
            body_of(arguments, readable, rest[2]).run(rest[0], **rest[1])
        elif kind == "compiled":
            carry_out_compiled(s, *[*rest, arguments, readable])
        else:
            carry_out_fork(s, *[*rest, arguments, readable])


def body_of(arguments: dict, readable: list, spec: int | None = None) -> sgl.SglFunction:
    return sgl.SglFunction(lambda s, body: carry_out(s, body, arguments, readable), spec)


def carry_out_compiled(s, body, source, inline, spec, arguments, readable) -> None:
    program = program_of(body, spec).compile()
    a, b = value_of(source, arguments, readable), arguments["b"]
    if inline:
        s += program(s, a, b)["last"]
        return
    state = program.run(a, b)
    readable += [(state, name) for name in "xyz" if name in state]
    s += state.ret_value["last"]


def carry_out_fork(s, bodies, mode, after, arguments, readable) -> None:
    forks = s.fork(len(bodies))
    forks += lambda i: f"branch {i}: "
    for fork, body in zip(forks, bodies):
        carry_out(fork, body, arguments, readable)
    if mode:
        forks.join(mode)
        readable += [(s, name) for name in "xyz" if name in s]
    if mode != "concate_and_append":  # the other mode takes the branches' state at their turn
        carry_out(forks[0], after, arguments, readable)
