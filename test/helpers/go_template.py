"""Helm's templates, as far as ``deploy/helm`` uses them: text/template with some functions of Sprig
and Helm. A function or word that is not known here is a KeyError or ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(- )?((?:[^}\"]|\"(?:\\.|[^\"\\])*\"|\}(?!\}))*?)( -)?\}\}", re.DOTALL)
_WORD = re.compile(r"\"(?:\\.|[^\"\\])*\"|:=|[|()]|[^\s|()]+")
Node = tuple[Any, ...]  # ("text", s), ("put", words), ("if"|"with"|"range", words, nodes, nodes)


class TemplateFailure(Exception):
    """A template called ``fail``, or ``required`` without a value."""


def _fail(message: str) -> str:
    raise TemplateFailure(message)


def _required(message: str, value: Any) -> Any:
    return value if value not in (None, "") else _fail(message)


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=not value, sort_keys=False)).strip()


def _printf(form: str, *values: Any) -> str:
    return form % values


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *values: sum(map(int, values)),
    "eq": lambda a, b: a == b,
    "fail": _fail,
    "gt": lambda a, b: a > b,
    "int": int,
    "le": lambda a, b: a <= b,
    "list": lambda *values: list(values),
    "nindent": lambda count, text: (
        "\n" + "\n".join(" " * count + line for line in text.split("\n"))
    ),
    "not": lambda value: not value,
    "printf": _printf,
    "quote": lambda value: '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"',
    "required": _required,
    "squote": lambda value: f"'{value}'",
    "toYaml": _yaml,
    "trim": lambda text: text.strip(),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda count, text: text[:count],
}


class Chart:
    """A chart's templates. Raises ValueError where one cannot be read."""

    def __init__(self, directory: Path) -> None:
        self.defined: dict[str, list[Node]] = {}
        self.files: dict[str, list[Node]] = {}
        self.facts = yaml.safe_load((directory / "Chart.yaml").read_text(encoding="utf-8"))
        for path in sorted((directory / "templates").iterdir()):
            tokens = _tokens(path.read_text(encoding="utf-8"))
            nodes = self._nodes(tokens)
            assert not tokens, f"{path.name}: an end too many"
            if path.suffix == ".yaml":
                self.files[path.name] = nodes

    def render(self, values: dict[str, Any], release: str = "test") -> dict[str, Any]:
        """The objects of all files, by kind. Raises TemplateFailure."""
        root = {
            "Values": values,
            "Release": {"Name": release, "Service": "Helm"},
            "Chart": {"Name": self.facts["name"], "Version": self.facts["version"]},
        }
        found = {}
        for name, nodes in self.files.items():
            text = self._text(nodes, root, {"$": root})
            for thing in filter(None, yaml.safe_load_all(text)):
                assert thing["kind"] not in found, name
                found[thing["kind"]] = thing
        return found

    def _nodes(self, tokens: list[Node], inside: bool = False) -> list[Node]:
        nodes: list[Node] = []
        while tokens:
            kind, value = tokens.pop(0)
            if kind == "text":
                nodes.append((kind, value))
            elif value[0] == "define":
                self.defined[value[1].strip('"')] = self._nodes(tokens, True)
                assert tokens.pop(0)[1] == ["end"]
            elif value[0] in ("if", "with", "range"):
                then, other = self._nodes(tokens, True), list[Node]()
                if tokens.pop(0)[1] == ["else"]:
                    other = self._nodes(tokens, True)
                    assert tokens.pop(0)[1] == ["end"]
                nodes.append((value[0], value[1:], then, other))
            elif value[0] in ("end", "else"):
                assert inside, f"{value[0]} without a beginning"
                tokens.insert(0, (kind, value))
                return nodes
            else:
                nodes.append(("put", value))
        assert not inside, "an end is missing"
        return nodes

    def _text(self, nodes: Sequence[Node], dot: Any, names: dict[str, Any]) -> str:
        out = ""
        for kind, value, *parts in nodes:
            if kind == "text":
                out += value
            elif kind == "put" and value[1:2] == [":="]:
                names[value[0]] = self._value(value[2:], dot, names)
            elif kind == "put":
                found = self._value(value, dot, names)
                out += "true" if found is True else str(found)
            elif kind == "range":
                each = self._value(value, dot, names)
                out += "".join(self._text(parts[0], item, names) for item in each)
            else:
                found = self._value(value, dot, names)
                inner = found if kind == "with" and found else dot
                out += self._text(parts[0] if found else parts[1], inner, dict(names))
        return out

    def _value(self, words: list[str], dot: Any, names: dict[str, Any]) -> Any:
        """The value of a pipeline: each part's is the last argument of the next."""
        parts: list[list[str]] = [[]]
        for word in words:
            if word == "|":
                parts.append([])
            else:
                parts[-1].append(word)
        value: Any = None
        for i, part in enumerate(parts):
            value = self._call(list(part), dot, names, [value] if i else [])
        return value

    def _call(self, words: list[str], dot: Any, names: dict[str, Any], last: list[Any]) -> Any:
        first, values = words.pop(0), list[Any]()
        if first in FUNCTIONS or first == "include":
            while words:
                values.append(self._argument(words, dot, names))
            values += last
            if first == "include":
                return self._text(self.defined[values[0]], values[1], {"$": values[1]})
            return FUNCTIONS[first](*values)
        words.insert(0, first)
        value = self._argument(words, dot, names)
        assert not words, f"{words} behind a value"
        return value

    def _argument(self, words: list[str], dot: Any, names: dict[str, Any]) -> Any:
        word = words.pop(0)
        if word == "(":
            depth, inner = 1, list[str]()
            while depth:
                word = words.pop(0)
                depth += (word == "(") - (word == ")")
                inner.append(word)
            return self._value(inner[:-1], dot, names)
        if word.startswith('"'):
            return word[1:-1].replace('\\"', '"')
        if word.lstrip("-").isdigit():
            return int(word)
        head, *path = word.split(".")
        if head and head not in names:
            raise ValueError(f"{word} is not known")
        value = names[head] if head else dot
        for name in filter(None, path):
            value = value[name]
        return value


def _tokens(text: str) -> list[Node]:
    """Texts and actions, white space trimmed where an action says so."""
    out: list[Node] = []
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        out.append(("text", before.rstrip() if match[1] else before))
        at, trim = match.end(), bool(match[3])
        if not match[2].strip().startswith("/*"):
            out.append(("action", _WORD.findall(match[2])))
    rest = text[at:]
    assert "{{" not in rest, "an action without an end"
    return [*out, ("text", rest.lstrip() if trim else rest)]
