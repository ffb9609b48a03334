"""ControlTokenEscaper: makes control tokens in the texts of users plain text.

A chat template writes control tokens as text. A user may write the same text: ``<|im_end|>`` in a
message must not end the message. So a mark is put into every such literal of a user's text before
the template is rendered. Then literals without a mark come from the template. Literals with a mark
are encoded as plain characters.

    user's text     "hi<|im_end|>"          "hi<MARK|im_end|>"        rendered, marks removed:
    template        "<|im_end|>"            TWIN                      -> ids of text, one id a TWIN

A twin is an added token of a second tokenizer. It stands for the control token, with the same
flags, and no user can write it. Control tokens themselves are plain text to the second tokenizer.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import tokenizers

_EDGE = "\ufdd0"  # never a character of a text


class ControlTokenEscaper:
    """Escapes and encodes texts for one tokenizer.

    Attributes:
        always: whether prompts without a mark must be encoded by ``encode`` too, because
            normalization may turn other texts into control tokens.
    """

    def __init__(self, source: str, layout: Mapping[str, Any]) -> None:
        """``source``: the text of a ``tokenizer.json``; ``layout``: its parsed form."""
        added = [entry for entry in layout.get("added_tokens") or [] if entry.get("special")]
        # A mark cannot be put into a token of one character.
        self._tokens = {e["content"]: e for e in added if len(e["content"]) > 1}
        self._source, self._lock = source, threading.Lock()
        nonce = secrets.token_hex(6)
        self._mark, self._twin = f"{_EDGE}{nonce}{_EDGE}", f"{_EDGE}{nonce}"
        self._escaped = json.dumps(self._mark)[1:-1]
        self._firsts = sorted({name[0] for name in self._tokens})
        self._starts = {name[:i] for name in self._tokens for i in range(1, len(name))}
        self._longest = max(map(len, self._tokens), default=1)
        self._inside = re.compile(broken(self._tokens) or r"(?!)")
        self.always = bool(layout.get("normalizer")) and any(
            entry.get("normalized") for entry in self._tokens.values()
        )

    def escape(self, value: Any) -> Any:
        """Return a JSON value with a mark in every control token of its texts; ``value`` itself if
        there is none. A text that ends with the beginning of a control token gets a mark at its
        end, because the template may put another text after it."""
        return value if self._clean(value) else self._covered(value)

    def _clean(self, value: Any) -> bool:
        if isinstance(value, str):
            return not any(first in value for first in self._firsts) or not self._touches(value)
        if isinstance(value, dict):
            return all(self._clean(k) and self._clean(value[k]) for k in value)
        return not isinstance(value, (list, tuple)) or all(map(self._clean, value))

    def _touches(self, text: str) -> bool:
        return self._inside.search(text) is not None or self._ends_open(text)

    def _ends_open(self, text: str) -> bool:
        tail = text[1 - self._longest :]
        return any(tail[i:] in self._starts for i in range(len(tail)))

    def _covered(self, value: Any) -> Any:
        if isinstance(value, str):
            text = self._inside.sub(lambda found: found[0] + self._mark, value)
            return text + self._mark if self._ends_open(value) else text
        if isinstance(value, dict):
            return {self._covered(name): self._covered(entry) for name, entry in value.items()}
        return list(map(self._covered, value)) if isinstance(value, (list, tuple)) else value

    def must_encode(self, text: str) -> bool:
        """Whether a rendered text must be encoded by ``encode``."""
        return self.always or self._mark in text or self._escaped in text

    def unescape(self, text: str) -> str:
        """Return the text without marks."""
        if _EDGE in text:
            text = text.replace(self._mark, "")
        return text.replace(self._escaped, "") if self._escaped in text else text

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered text. The first call is slow, because it builds the
        second tokenizer. Raises the tokenizer's errors."""
        model, twins, ids = self._made
        told = self._whole.sub(lambda found: twins[found[0]], text) if twins else text
        found = model.encode_batch_fast([self.unescape(told)], add_special_tokens=False)[0].ids
        return [ids.get(token, token) for token in found]

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(_trie(self._tokens))

    @property
    def _made(self) -> tuple[tokenizers.Tokenizer, dict[str, str], dict[int, int]]:
        with self._lock:
            return self._second

    @cached_property
    def _second(self) -> tuple[tokenizers.Tokenizer, dict[str, str], dict[int, int]]:
        """The second tokenizer, the twin of each control token, and the control tokens' ids by the
        twins' ids."""
        model = tokenizers.Tokenizer.from_str(self._source)
        model.no_truncation()
        model.no_padding()
        twins = {name: f"{self._twin}t{i}{_EDGE}" for i, name in enumerate(self._tokens)}
        flags = ("single_word", "lstrip", "rstrip", "normalized")
        model.add_tokens(
            [
                tokenizers.AddedToken(
                    twins[name], special=False, **{f: bool(entry.get(f)) for f in flags}
                )
                for name, entry in self._tokens.items()
            ]
        )
        model.encode_special_tokens = True  # encodes control tokens as plain text
        ids: dict[int, int] = {}
        for name, twin in twins.items():
            token = model.token_to_id(twin)
            assert token is not None
            ids[token] = self._tokens[name]["id"]
        return model, twins, ids


def _trie(names: Iterable[str]) -> str:
    """Return a pattern that matches the longest of ``names`` and reads each character once."""
    heads: dict[str, list[str]] = {}
    for name in names:
        heads.setdefault(name[:1], []).append(name[1:])
    ends = heads.pop("", None) is not None
    options = [re.escape(head) + _trie(rest) for head, rest in sorted(heads.items())]
    if not options:
        return ""
    return f"(?:{'|'.join(options)}){'?' if ends else ''}"


def broken(names: Iterable[str]) -> str:
    """Return a regular expression that finds each of ``names`` and matches its first character.

    A lookahead checks the rest of the name.
    """
    heads: dict[str, list[str]] = {}
    for name in names:
        heads.setdefault(name[0], []).append(name[1:])
    return "|".join(f"{re.escape(head)}(?={_trie(rest)})" for head, rest in heads.items())
