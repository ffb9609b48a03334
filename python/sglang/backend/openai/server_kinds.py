"""Server kinds: what other servers that speak like OpenAI enforce, and by which fields.

OpenAI's APIs know JSON schemas alone. Most servers behind ``base_url`` also hold a text to a
pattern, a list of texts or a grammar, each by fields of its own. The kind
of a server is found out by paths that only one kind answers.

    kind        found by                    regex  choices  json_schema  ebnf  structural_tag
    sglang      /get_model_info             yes    yes      yes          yes   yes
    upstream    the same, no constraints    yes    yes      yes          yes   no
    vllm        /version, owned_by          yes    yes      yes          yes   no
    llama.cpp   /props, owned_by            no     yes      yes          yes   no
    ollama      /api/version                no     no       chats        no    no
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sglang.ir.params import GenParams

SECONDS = 2.0  # for the answer to one question
MOST = 1 << 20  # bytes of such an answer
STRUCTURED = (0, 11)  # the first vLLM of which ``structured_outputs`` is the only spelling
OWNERS = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "upstream", "library": "ollama"}

Spelling = Callable[[Any], dict[str, Any]]
Answers = Callable[[str], Any]
"""The JSON that a path is answered with; None where there is none."""


@dataclass(frozen=True)
class ServerKind:
    """Servers of one kind, and the fields by which they hold a text to a constraint.

    Attributes:
        spellings: of each kind of constraint that they enforce, the fields of a body.
        chats: kinds that they enforce in /chat/completions alone.
    """

    name: str
    spellings: Mapping[str, Spelling]
    chats: frozenset[str] = frozenset()

    def constraints(self, chat: bool) -> frozenset[str]:
        """Kinds of constraints that texts are held to."""
        return frozenset(self.spellings) | (self.chats if chat else frozenset())

    def fields(self, params: GenParams) -> dict[str, Any]:
        """Fields of a body for what ``params`` hold the text to."""
        for kind, spelled in self.spellings.items():
            value = getattr(params, PARAMETERS[kind])
            if value is not None:
                return spelled(value)
        return {}


# The parameter of a ``gen`` that each kind of constraint is in when it is sent.
PARAMETERS = {
    "regex": "regex", "choices": "one_of", "json_schema": "json_schema", "ebnf": "ebnf",
    "structural_tag": "structural_tag",
}  # fmt: skip


def _named(name: str) -> Spelling:
    return lambda value: {name: list(value) if isinstance(value, tuple) else value}


def _inside(name: str) -> Spelling:
    spelled = _named(name)
    return lambda value: {"structured_outputs": spelled(value)}


def _schema(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pattern(texts: tuple[str, ...]) -> str:
    return "(" + "|".join(map(re.escape, texts)) + ")"


def _gbnf(texts: tuple[str, ...]) -> str:
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


_CHAT_SCHEMA = frozenset({"json_schema"})  # by ``response_format``
_OURS = {
    name: _named(name) for name in ("regex", "choices", "json_schema", "ebnf", "structural_tag")
}
_VLLM = {"regex": "regex", "choices": "choice", "json_schema": "json", "ebnf": "grammar"}
KINDS = {
    kind.name: kind
    for kind in (
        ServerKind("sglang", _OURS),
        ServerKind(
            "upstream",
            {
                "regex": _named("regex"),
                "choices": lambda texts: {"regex": _pattern(texts)},
                "json_schema": lambda value: {"json_schema": _text(value)},
                "ebnf": _named("ebnf"),
            },
        ),
        ServerKind("vllm", {kind: _inside(name) for kind, name in _VLLM.items()}),
        ServerKind("vllm<0.11", {kind: _named(f"guided_{name}") for kind, name in _VLLM.items()}),
        ServerKind(
            "llama.cpp",
            {
                "choices": lambda texts: {"grammar": _gbnf(texts)},
                "json_schema": lambda value: {"json_schema": _schema(value)},
                "ebnf": _named("grammar"),
            },
        ),
        ServerKind("ollama", {}, _CHAT_SCHEMA),
    )
}
PLAIN = ServerKind("", {}, _CHAT_SCHEMA)  # nothing more is known


def kind_named(name: str) -> ServerKind:
    """Return the kind of a name. Raises ValueError for an unknown name."""
    if name not in KINDS:
        raise ValueError(f"server is {name!r}; use one of {sorted(KINDS)}")
    return KINDS[name]


def kind_of(answers: Answers) -> ServerKind:
    """The kind of the server that gives these answers."""
    info = answers("/get_model_info")
    if isinstance(info, Mapping) and "model_path" in info:
        return KINDS["sglang" if "constraints" in info else "upstream"]
    version = answers("/version")
    if isinstance(version, Mapping) and isinstance(version.get("version"), str):
        return _vllm(version["version"])
    props = answers("/props")
    if isinstance(props, Mapping) and "default_generation_settings" in props:
        return KINDS["llama.cpp"]
    version = answers("/api/version")
    if isinstance(version, Mapping) and "version" in version:
        return KINDS["ollama"]
    models = answers("/v1/models")
    data = models.get("data") if isinstance(models, Mapping) else None
    for card in data if isinstance(data, list) else ():
        owner = card.get("owned_by") if isinstance(card, Mapping) else None
        if owner in OWNERS:
            return KINDS[OWNERS[owner]]
    return PLAIN


def _vllm(version: str) -> ServerKind:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    # A build from source may have 0.1.dev as its version.
    old = len(numbers) == 2 and tuple(numbers) < STRUCTURED and "dev" not in version
    return KINDS["vllm<0.11" if old else "vllm"]


class ServerAnswers:
    """Answers of the server at ``url``, which ends in /v1 or not.

    Attributes:
        reached: False where no connection to the server was possible.
    """

    def __init__(self, url: str, api_key: str) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.reached = True

    def __call__(self, path: str) -> Any:
        if not self.reached:
            return None
        request = urllib.request.Request(self._root + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as reply:
                content = reply.read(MOST)
        except urllib.error.HTTPError:
            return None
        except (OSError, ValueError):
            self.reached = False
            return None
        with suppress(ValueError):
            return json.loads(content)
        return None
