"""Random programs: forks, joins, tools, transforms, scopes, roles, several outputs, other programs.

A program is made of a seed, so that it can be run in several ways and its states compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import sglang as sgl
from sglang.program import SglFunction

WORDS = ("river", "a\n", " two", "é", "{x}", "Yes.", " 12", "<b>k</b>", "one, two", "\n\n")


PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(8)


def shout(text: str) -> str:
    return text.upper()[:12]


async def count(text: str) -> Any:
    return {"chars": len(text)}


def greet() -> str:
    return "hello"


Op = Callable[[Any, dict[str, Any]], None]


class _Maker:
    """Makes the operations of one program. Kinds of variables: text, list (of texts), value."""

    def __init__(self, seed: int, seeded: bool, media: bool) -> None:
        self.random, self.seeded, self.media = random.Random(seed), seeded, media
        self.left, self.made, self.concatenated = 14, 0, False

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def ops(self, kinds: dict[str, str], depth: int, turn: str = "") -> list[Op]:
        """Operations of one stream, or of one turn. ``kinds``: of the variables; grows."""
        found = []
        for _ in range(self.random.randint(2, 5)):
            if self.left <= 0:
                break
            self.left -= 1
            found.append(self.op(kinds, depth, turn))
        return found

    def op(self, kinds: dict[str, str], depth: int, turn: str) -> Op:
        kind = self.random.choice(
            [
                "text",
                "gen",
                "gen",
                "append",
                "transform",
                "set",
                "sum",
                "select",
                "tool",
                "scope",
                "many",
            ]
            + (["fork", "concat", "role", "call", "reason"] if depth < 2 and not turn else [])
            + (["image"] if self.media else [])
        )
        return getattr(self, "_" + kind)(kinds, depth)

    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = {"max_tokens": self.random.randint(1, 6), "temperature": 0}
        if self.seeded:
            params |= {"temperature": 1.0, "seed": self.random.randint(0, 99), "top_p": 0.9}
        if self.random.random() < 0.3:
            params["stop"] = self.random.choice(["\n", [" ", "e"], "zz"])
        return params

    def _text(self, kinds: dict[str, str], depth: int) -> Op:
        text = self.random.choice(WORDS)
        return lambda s, env: s.__iadd__(text)

    def _gen(self, kinds: dict[str, str], depth: int) -> Op:
        name, params = self.name(), self.params()
        kinds[name] = "text"
        return lambda s, env: s.__iadd__(sgl.gen(name, **params))

    def _many(self, kinds: dict[str, str], depth: int) -> Op:
        name, params = self.name(), self.params()
        kinds[name] = "several"
        return lambda s, env: s.__iadd__(sgl.gen(name, n=2, **params))

    def _reason(self, kinds: dict[str, str], depth: int) -> Op:
        name, params = self.name(), self.params()
        kinds[name], kinds[name + "_reasoning_content"] = "text", "text"
        node = "a" + sgl.gen(name, **params) + "b"
        model = self.random.choice(["qwen3", "deepseek-r1"])
        return lambda s, env: s.__iadd__(sgl.separate_reasoning(node, model))

    def _append(self, kinds: dict[str, str], depth: int) -> Op:
        texts = [name for name, kind in kinds.items() if kind == "text"]
        name = self.random.choice([*texts, "arg", "other"])
        if name in ("arg", "other"):
            return lambda s, env: s.__iadd__(env[name])
        return lambda s, env: s.__iadd__(s[name])

    def _set(self, kinds: dict[str, str], depth: int) -> Op:
        name, texts = self.name(), [n for n, kind in kinds.items() if kind == "text"]
        kinds[name] = "list"
        first = self.random.choice(texts) if texts else None
        return lambda s, env: s.__setitem__(
            name, [env["arg"] if first is None else s[first], "tail"]
        )

    def _sum(self, kinds: dict[str, str], depth: int) -> Op:
        """A variable whose value is a sum of texts."""
        name, texts = self.name(), [n for n, kind in kinds.items() if kind == "text"]
        kinds[name] = "text"
        first = self.random.choice(texts) if texts else None
        return lambda s, env: s.__setitem__(
            name, "<" + (env["other"] if first is None else s[first]) + "|" + env["arg"]
        )

    def _transform(self, kinds: dict[str, str], depth: int) -> Op:
        sources = [*kinds] or None
        if sources is None:
            return self._text(kinds, depth)
        source, name = self.random.choice(sources), self.name()
        words = [sgl.transforms.strip(), sgl.transforms.template("[{value}]")]
        words.append(sgl.transforms.regex(r"(?s)^(.{0,3})", 1))
        chain = self.random.choice(words)
        if kinds[source] in ("list", "several", "gathered"):
            chain = self.random.choice([sgl.transforms.join("+"), chain])
        if self.random.random() < 0.4:
            chain = chain | self.random.choice(words)
        kinds[name] = "text"
        return lambda s, env: s.__setitem__(name, chain.of(source))

    def _select(self, kinds: dict[str, str], depth: int) -> Op:
        if self.concatenated:  # a runtime scores nothing behind texts side by side
            return self._text(kinds, depth)
        name = self.name()
        kinds[name] = "text"
        methods = (sgl.token_length_normalized, sgl.greedy_token_selection,
                   sgl.unconditional_likelihood_normalized)  # fmt: skip
        method = self.random.choice(methods)
        return lambda s, env: s.__iadd__(
            sgl.select(name, [" yes", " no", " maybe so"], choices_method=method)
        )

    def _tool(self, kinds: dict[str, str], depth: int) -> Op:
        name = self.name()
        sources = [n for n, kind in kinds.items()]
        kinds[name] = "text"
        if not sources or self.random.random() < 0.3:
            return lambda s, env: s.__iadd__(sgl.tool(name, greet))
        source, function = self.random.choice(sources), self.random.choice([shout, count])
        return lambda s, env: s.__iadd__(sgl.tool(name, function, of=source))

    def _scope(self, kinds: dict[str, str], depth: int) -> Op:
        name, inner = self.name(), self.ops(kinds, 2, "scope")
        kinds[name] = "text"

        def run(s: Any, env: dict[str, Any]) -> None:
            with s.var_scope(name):
                for op in inner:
                    op(s, env)

        return run

    def _role(self, kinds: dict[str, str], depth: int) -> Op:
        role, inner = self.random.choice(["user", "assistant"]), self.ops(kinds, 2, "turn")

        def run(s: Any, env: dict[str, Any]) -> None:
            with getattr(s, role)():
                for op in inner:
                    op(s, env)

        return run

    def _image(self, kinds: dict[str, str], depth: int) -> Op:
        return lambda s, env: s.__iadd__(sgl.image(env["image"] or PICTURE))

    def _fork(self, kinds: dict[str, str], depth: int) -> Op:
        branches: list[Any] = []
        gathered: dict[str, Any] = {}
        for _ in range(self.random.randint(1, 3)):
            own = dict(kinds)
            branches.append(self.ops(own, depth + 1))
            gathered |= {name: "gathered" for name in own if name not in kinds}

        def run(s: Any, env: dict[str, Any]) -> None:
            forks = s.fork(len(branches))
            for fork, branch in zip(forks, branches):
                for op in branch:
                    op(fork, env)
            forks.join()

        kinds |= gathered
        return run

    def _concat(self, kinds: dict[str, str], depth: int) -> Op:
        texts = [self.random.choice(WORDS) for _ in range(2)]
        params, names = self.params(), [self.name(), self.name()]

        def run(s: Any, env: dict[str, Any]) -> None:
            forks = s.fork(2)
            for fork, text, name in zip(forks, texts, names):
                fork += text + sgl.gen(name, **params)
            forks.join("concate_and_append")

        self.concatenated = True
        return run

    def _call(self, kinds: dict[str, str], depth: int) -> Op:
        own: dict[str, str] = {}
        inner, name = self.ops(own, 2), self.name()
        texts = [n for n, kind in own.items() if kind == "text"]
        result = self.random.choice(texts) if texts else None
        kinds[name] = "text"

        def body(s: Any, word: Any) -> Any:
            s += "A " + word
            for op in inner:
                op(s, {"arg": word, "other": "!", "image": None})
            return "none " + word if result is None else s[result] + "!" + s[result]

        program = sgl.function(body)

        def run(s: Any, env: dict[str, Any]) -> None:
            state = program.run(env["arg"])
            s[name] = [state.ret_value]
            s += state.ret_value

        kinds[name] = "list"
        return run


def random_program(seed: int, seeded: bool = False, media: bool = False) -> SglFunction:
    """A program of two arguments, ``arg`` and ``other``, and with ``media`` ``image``; it returns
    some of its variables."""
    maker = _Maker(seed, seeded, media)
    kinds: dict[str, str] = {}
    ops = maker.ops(kinds, 0)
    while maker.left > 4:
        ops += maker.ops(kinds, 0)

    def program(s: Any, arg: Any, other: Any = "!", image: Any = "") -> Any:
        s += "Q: "  # a runtime refuses an empty prompt
        for op in ops:
            op(s, {"arg": arg, "other": other, "image": image})
        texts = [s[name] for name, kind in kinds.items() if kind == "text"]
        joined = arg + ":" + texts[0] + texts[-1] if texts else ""
        return {"joined": [joined], **{name: s[name] for name in list(kinds)[-3:]}}

    return sgl.function(program)


def made(state: Any) -> dict[str, Any]:
    """The text, turns, variables and result of a run."""
    variables = dict(state._executor.stream.variables)
    return {
        "text": state.text(),
        "messages": state.messages(),
        "variables": variables,
        "result": state.ret_value,
    }
