"""EBNF decoding: the most likely text of a grammar, token for token.

The grammar is read and matched here, in the program: a state is a set of continuations, each a
stack of what must follow; a token is allowed where its bytes lead to at least one. Rules are
`name ::= ...` with "literals", [character classes], ( ), | and * + ?; the first is the start. Left
recursion is refused. Arguments: the prompt, most tokens, the grammar.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from sglang.inferlet import Context, Ctx

JSON_GRAMMAR = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? "}" ws
member ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]" ws
string ::= "\"" [a-zA-Z0-9 _.-]* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
ws ::= " "?
"""
LEXEMES = re.compile(
    r'\s+|#[^\n]*|(?P<rule>[\w-]+)\s*::=|(?P<text>"(?:\\.|[^"\\])*")'
    r"|(?P<set>\[(?:\\.|[^\]\\])*\])|(?P<name>[\w-]+)|(?P<mark>[()|*+?])"
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
DEEPEST = 200  # expansions on the way to the next byte

# A node is ("byte", set of bytes), ("rule", name), ("all", nodes), ("any", nodes), ("many", node).
Node = tuple[Any, ...]
# A continuation is None, where the text may end, or (node, continuation).
Rest = Any


class Grammar:
    """Rules by name, and the continuations of a text."""

    def __init__(self, text: str) -> None:
        """Raises ValueError, naming what is wrong."""
        self.rules: dict[str, Node] = {}
        self._words = self._lex(text)
        self._at = 0
        while self._at < len(self._words):
            kind, name = self._words[self._at]
            if kind != "rule":
                raise ValueError(f"{name!r} stands where a rule begins; write name ::= ...")
            self._at += 1
            self.rules[name] = self._any()
        for name in [word for kind, word in self._words if kind == "name"]:
            if name not in self.rules:
                raise ValueError(
                    f"there is no rule {name!r}; the rules are {', '.join(self.rules)}"
                )
        if not self.rules:
            raise ValueError("the grammar has no rule")
        self.start = frozenset([(("rule", next(iter(self.rules))), None)])
        self.step = lru_cache(1 << 16)(self._step)
        self.heads = lru_cache(1 << 16)(self._heads)

    def _lex(self, text: str) -> list[tuple[str, str]]:
        words, at = [], 0
        while at < len(text):
            found = LEXEMES.match(text, at)
            if found is None:
                raise ValueError(f"the grammar cannot be read at {text[at : at + 20]!r}")
            at = found.end()
            if found.lastgroup is not None:
                words.append((found.lastgroup, found[found.lastgroup]))
        return words

    def _next(self) -> tuple[str, str]:
        return self._words[self._at] if self._at < len(self._words) else ("end", "")

    def _any(self) -> Node:
        options = [self._all()]
        while self._next() == ("mark", "|"):
            self._at += 1
            options.append(self._all())
        return options[0] if len(options) == 1 else ("any", tuple(options))

    def _all(self) -> Node:
        items = []
        while self._next()[0] in ("text", "set", "name") or self._next() == ("mark", "("):
            items.append(self._item())
        return ("all", tuple(items))

    def _item(self) -> Node:
        kind, word = self._next()
        self._at += 1
        if kind == "text":
            node = _sequence(_characters(word[1:-1]))
        elif kind == "set":
            node = _class(word[1:-1])
        elif kind == "name":
            node = ("rule", word)
        else:
            node = self._any()
            if self._next() != ("mark", ")"):
                raise ValueError("a ( has no ) behind it")
            self._at += 1
        while self._next() in (("mark", "*"), ("mark", "+"), ("mark", "?")):
            mark = self._next()[1]
            self._at += 1
            if mark == "?":
                node = ("any", (node, ("all", ())))
            else:
                node = ("many", node) if mark == "*" else ("all", (node, ("many", node)))
        return node

    def _heads(self, rest: Rest, depth: int = 0) -> frozenset[Any]:
        """The continuations of ``rest`` that begin with a byte, and None where it may end."""
        if rest is None:
            return frozenset([None])
        if depth > DEEPEST:
            raise ValueError("a rule begins with itself (left recursion); write it with *")
        (kind, what), after = rest
        if kind == "byte":
            return frozenset([rest])
        if kind == "rule":
            return self._heads((self.rules[what], after), depth + 1)
        if kind == "all":
            for node in reversed(what):
                after = (node, after)
            return self._heads(after, depth + 1)
        if kind == "any":
            nexts = [(node, after) for node in what]
        else:
            nexts = [(what, rest), after]
        return frozenset().union(*(self._heads(one, depth + 1) for one in nexts))

    def _step(self, state: frozenset[Rest], byte: int) -> frozenset[Rest]:
        """The state behind one more byte; empty where the grammar does not allow it."""
        found = set()
        for rest in state:
            for head in self.heads(rest):
                if head is not None and byte in head[0][1]:
                    found.add(head[1])
        return frozenset(found)

    def feed(self, state: frozenset[Rest], data: bytes) -> frozenset[Rest]:
        for byte in data:
            state = self.step(state, byte)
            if not state:
                break
        return state

    def complete(self, state: frozenset[Rest]) -> bool:
        """Whether the text may end."""
        return any(None in self.heads(rest) for rest in state)

    def matches(self, text: str) -> bool:
        return self.complete(self.feed(self.start, text.encode()))


def _characters(text: str) -> list[str]:
    """Characters of a literal or class, escapes resolved."""
    return [
        ESCAPES.get(one[1], one[1]) if one[0] == "\\" else one
        for one in re.findall(r"\\.|[^\\]", text, re.DOTALL)
    ]


def _sequence(characters: list[str]) -> Node:
    data = "".join(characters).encode()
    return ("all", tuple(("byte", frozenset([byte])) for byte in data))


def _class(text: str) -> Node:
    negated = text.startswith("^")
    parts = re.findall(r"\\.|[^\\]", text[negated:], re.DOTALL)
    found: set[int] = set()
    index = 0
    while index < len(parts):
        first = last = _characters(parts[index])[0]
        if index + 2 < len(parts) and parts[index + 1] == "-":
            last = _characters(parts[index + 2])[0]
            index += 2
        if ord(last) > 127:
            raise ValueError(f"{last!r} is no ASCII; classes have ASCII characters")
        found.update(range(ord(first), ord(last) + 1))
        index += 1
    return ("byte", frozenset(range(128)) - found if negated else frozenset(found))


class Allowed:
    """The tokens that each state allows, by a tree of the vocabulary's bytes."""

    def __init__(self, grammar: Grammar, vocabulary: list[bytes], leave_out: list[int]) -> None:
        self._grammar = grammar
        self._tree: dict[Any, Any] = {}
        for token, data in enumerate(vocabulary):
            if data and token not in leave_out:
                node = self._tree
                for byte in data:
                    node = node.setdefault(byte, {})
                node.setdefault("tokens", []).append(token)
        self.tokens = lru_cache(1 << 12)(self._tokens)

    def _tokens(self, state: frozenset[Rest]) -> list[int]:
        found: list[int] = []
        waiting = [(state, self._tree)]
        while waiting:
            here, node = waiting.pop()
            found += node.get("tokens", ())
            for byte, child in node.items():
                after = self._grammar.step(here, byte) if byte != "tokens" else None
                if after:
                    waiting.append((after, child))
        return found


async def main(ctx: Ctx) -> str:
    prompt, most, text = ctx.get_arg() or ("A pet in JSON: ", "32", JSON_GRAMMAR)
    grammar, vocabulary = Grammar(text), await ctx.get_vocab()
    allowed = Allowed(grammar, vocabulary, ctx.eos)
    answer, state = await Context(ctx).fill(prompt), grammar.start
    start = len(answer.tokens)
    for _ in range(int(most)):
        choices = allowed.tokens(state) + ctx.eos * grammar.complete(state)
        dist = await answer.next_dist(k=-2)
        token = max(choices, key=dist.logprobs.__getitem__)
        if token in ctx.eos:
            break
        state = grammar.feed(state, vocabulary[token])
        answer.extend([token])
    tokens = answer.tokens[start:]
    await answer.free()
    return b"".join(vocabulary[token] for token in tokens).decode(errors="replace")
