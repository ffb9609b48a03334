"""Speculation: one call of an API model in place of several (SGLang paper, section 5).

An API bills the whole prompt at every call. With speculation a call continues past its stop, and
its text is matched with the text and gens that the program appends next.

Completion models ("text"): the text after a gen's stop is kept (``Leftover``), and matched with the
constants and gens that follow. Chat models ("chat"): the gens of one assistant turn are deferred;
at the turn's end one reply is requested, and matched with the turn's constants and gens in order
(``match``). A gen gets a separate call if the text differs, or if the gen's own limits could have
ended it earlier.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang.ir.params import DEFAULTS, GenParams, given, strings
from sglang.ir.sampling import CHOICE, LOGITS, names_of
from sglang.ir.stops import cut

MATCHED = ("max_new_tokens", "stop", "max_retries")
# Parameters that may have any value in a gen whose text another gen's call has generated.
REUSABLE = frozenset([*MATCHED, *names_of(CHOICE), *names_of(LOGITS)])


class Pending(NamedTuple):
    """A deferred gen."""

    name: str | None
    params: GenParams


@dataclass(frozen=True)
class Leftover:
    """Text that the model has generated beyond the last gen.

    Attributes:
        text: the text from the last gen's stop on.
        ended: the model ended the text; otherwise a limit cut the text.
        density: tokens per byte of the reply.
        prompt_tokens: prompt tokens of the call, which a reuse saves.
        params: parameters of the call.
    """

    text: str
    ended: bool
    density: float
    prompt_tokens: int
    params: GenParams

    def rest(self, text: str) -> Leftover:
        """Return a copy with another text left."""
        return dataclasses.replace(self, text=text)

    def after(self, constant: str) -> Leftover | None:
        """Return the rest after the program appended ``constant``; None if the text differs."""
        if self.text.startswith(constant):
            return self.rest(self.text[len(constant) :])
        return None

    def take(self, params: GenParams) -> tuple[str, Any, str] | None:
        """Return a gen's (value, finish reason, rest); None if a separate call could differ."""
        if not alike(params, self.params):
            return None
        found = cut(self.text, strings(params.stop))
        if found is None and not self.ended:
            return None
        end, reason = (len(self.text), None) if found is None else found
        if self.tokens(self.text[: end + len(reason or "")]) > (params.max_new_tokens or 0):
            return None  # the limit may come before the stop is complete
        return self.text[:end], {"type": "stop", "matched": reason}, self.text[end:]

    def tokens(self, text: str) -> int:
        """Estimate the tokens of ``text`` from its bytes: the service reports only the reply's sum.

        So a value may exceed ``max_new_tokens`` slightly; its text is still the model's.
        """
        return math.ceil(len(text.encode("utf-8", "surrogatepass")) * self.density)


class Speculation:
    """Savings of a program, with its forks, by speculation.

    Attributes:
        calls: number of calls that continued past a stop.
        saved_calls: number of gens that needed no call.
        saved_prompt_tokens: lower bound of the prompt tokens of the saved calls.
        mismatches: number of texts that differed from the program's pattern.
    """

    def __init__(self) -> None:
        self.calls = self.saved_calls = self.saved_prompt_tokens = self.mismatches = 0
        self._lock = threading.Lock()

    def add(self, *, calls: int = 0, saved: int = 0, tokens: int = 0, mismatches: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.calls += calls
            self.saved_calls += saved
            self.saved_prompt_tokens += tokens
            self.mismatches += mismatches

    def __repr__(self) -> str:
        return (
            f"Speculation(calls={self.calls}, saved_calls={self.saved_calls}, "
            f"saved_prompt_tokens={self.saved_prompt_tokens}, mismatches={self.mismatches})"
        )


def possible(params: GenParams) -> bool:
    """Return True if a gen with ``params`` may take its text from another gen's call."""
    if (params.n or 1) != 1:
        return False
    return all(
        name in REUSABLE or value == getattr(DEFAULTS, name)
        for name, value in given(params).items()
    )


def alike(a: GenParams, b: GenParams) -> bool:
    """Return True if both parameters sample from the same distribution."""
    neutral = dict.fromkeys(MATCHED)
    return dataclasses.replace(a, **neutral) == dataclasses.replace(b, **neutral)


def running_on(params: GenParams, tokens: int, stop: Sequence[str]) -> GenParams:
    """Return the parameters of a call that continues past the gen's stop, up to ``stop``."""
    most = max(tokens, params.max_new_tokens or 0)
    return dataclasses.replace(params, stop=tuple(stop) or None, max_new_tokens=most)


def leftover(text: str, meta: dict[str, Any], params: GenParams) -> Leftover:
    """Return a Leftover with the whole text of a reply."""
    finish, tokens = meta.get("finish_reason"), int(meta.get("completion_tokens") or 0)
    kind = finish.get("type") if isinstance(finish, dict) else finish
    size = len(text.encode("utf-8", "surrogatepass"))  # a service may send half a character
    density = tokens / size if tokens and text else 1.0  # unknown: a token is a byte
    return Leftover(text, kind != "length", density, int(meta.get("prompt_tokens") or 0), params)


def match(turn: Sequence[Pending | str], reply: Leftover) -> list[tuple[str, Any]]:
    """Return (value, finish reason) of the turn's leading gens that the reply matches.

    A gen ends at its stop or, without a stop, before the constant that follows the gen. Any text
    may follow the last gen.
    """
    found: list[tuple[str, Any]] = []
    last = max(i for i, item in enumerate(turn) if not isinstance(item, str))
    rest: Leftover | None = reply
    for index, item in enumerate(turn[: last + 1]):
        assert rest is not None
        if isinstance(item, str):
            rest = rest.after(item)
            if rest is None:
                break
            continue
        following = turn[index + 1] if index + 1 < len(turn) else ""
        params = item.params
        if isinstance(following, str) and following and not strings(params.stop):
            params = dataclasses.replace(params, stop=following)
        taken = rest.take(params)
        if taken is None:
            break
        value, reason, text = taken
        found.append((value, reason))
        rest = rest.rest(text)
    return found
