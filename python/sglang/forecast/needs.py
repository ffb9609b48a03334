"""Needs: the units (tokens) that a call makes a backend read, for each of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sglang.backend.base import Backend, Choose, Commit, Prompt
from sglang.forecast.cache_model import Need, Units, common, units
from sglang.forecast.prompt_reader import PromptReader
from sglang.forecast.script import RehearsedCall
from sglang.ir.params import GenParams, strings
from sglang.semantics.choice_requests import HEALING_TOKENS

CONSTRAINTS = ("regex", "json_schema", "ebnf", "structural_tag", "one_of")
TREE = "\0tree"  # space of units that are never cached


@dataclass(frozen=True)
class Bill:
    """Needs of a call, one per request.

    Attributes:
        generated: largest number of tokens that the call generates.
        several: number of completions that continue the first need, each with a further need. The
            usage of the call counts the first need once per completion, and no further need.
    """

    needs: tuple[Need, ...]
    generated: int = 0
    several: int = 0


class Biller(Protocol):
    def texts(self, asked: RehearsedCall) -> Iterator[Prompt]:
        """Yield all prompts that ``bill`` will tokenize."""

    def bill(self, asked: RehearsedCall) -> Bill:
        """Return the needs of a call."""


class NativeBiller:
    """Bills calls of a runtime of this project by the tokens that its ``/generate`` computes."""

    def __init__(self, backend: Backend, reader: PromptReader) -> None:
        self._reader = reader
        self._stops = frozenset(backend.chat_template.stop)
        self._as_tree = backend.scores_options

    def texts(self, asked: RehearsedCall) -> Iterator[Prompt]:
        prompt = asked.call.prompt
        yield prompt
        for text in asked.call.options if isinstance(asked.call, Choose) else asked.texts:
            yield replace(prompt, text=prompt.text + text)

    def bill(self, asked: RehearsedCall) -> Bill:
        call, space = asked.call, asked.call.prompt.lora_path
        prompt = self._reader.units(call.prompt)
        if isinstance(call, Commit):
            return Bill((Need(prompt, len(prompt), space=space),))
        if isinstance(call, Choose) and call.method.generates:
            longest = max(len(self._reader.behind(option)) for option in call.options)
            return Bill((Need(prompt, len(prompt) - 1, space=space),), longest)
        if isinstance(call, Choose):
            scored = self._tree if self._as_tree and not call.prompt.media else self._scored
            return Bill(tuple(scored(prompt, call, space)))
        params = call.params
        most, start = params.max_new_tokens or 0, _start(params)
        alone = Need(prompt, _limit(prompt, start, len(prompt)), space=space)
        if not most:
            return Bill((alone,))
        found = [self._generated(call.prompt, prompt, text) for text in asked.texts]
        kept = [one[: self._kept(asked, len(one), text)] for one, text in zip(found, asked.texts)]
        generated = sum(min(most, len(one) + 1) for one in found)
        if len(kept) == 1:
            return Bill((Need(prompt, _limit(prompt, start, -1), kept[0], space),), generated)
        branches = [Need(prompt, len(prompt) - 1, one, space) for one in kept]
        return Bill((alone, *branches), generated, len(branches))

    def _generated(self, prompt: Prompt, read: Units, text: str) -> Units:
        """Return the units of a generated text. ``read``: units of the prompt before it."""
        whole = self._reader.units(replace(prompt, text=prompt.text + text))
        if whole[: len(read)] == read:
            return whole[len(read) :]
        return self._reader.behind(text)  # a model cannot generate a token across the boundary

    def _kept(self, asked: RehearsedCall, length: int, text: str) -> int:
        """Return the number of generated tokens that were computed; the last one is not.

        An unknown text is assumed to have the greatest length, and to end with a stop or end token;
        if end tokens are ignored, the length ends the text.
        """
        call = asked.call
        assert not isinstance(call, (Choose, Commit))
        params = call.params
        if any(getattr(params, name) for name in CONSTRAINTS):
            return length - 1
        if length < (params.max_new_tokens or 0):
            return length
        if params.ignore_eos or self._reader.knows(text):
            return length - 1
        stops = set(strings(params.stop)) - self._stops or params.stop_regex
        return length if stops or call.prompt.messages else length - 1

    def _tree(self, prompt: Units, call: Choose, space: str) -> Iterator[Need]:
        """Yield needs of a select that is scored as a tree of options: the prompt, or without a
        prompt the first option; then each prefix of an option once. These are not cached."""
        text = call.prompt.text
        rows = [
            self._reader.units(replace(call.prompt, text=text + option)) for option in call.options
        ]
        first = min(common(prompt, row, 0) for row in rows) if text else 0
        behind = [tuple(row[first:]) for row in rows]
        beginnings = {row[:end] for row in behind for end in range(1, len(row))}
        count = len(beginnings) if len(rows) > 1 else len(behind[0])
        opening = prompt if text else units(behind[0])
        yield Need(opening, len(opening), space=space)
        yield Need(units(range(count + (first > 0 and len(rows) > 1))), 0, space=TREE)
        if call.method.unconditional:
            yield Need(units(behind[0]), len(behind[0]), space=space)
            yield Need(units(range(count)), 0, space=TREE)

    def _scored(self, prompt: Units, call: Choose, space: str) -> Iterator[Need]:
        """Yield needs of a select that is scored as in ``choice_requests``.

        First the prompt; then prompt and option, with scores from some tokens before the prompt's
        end on, or from further back if the options' tokenizations differ before that.
        """
        text = call.prompt.text
        rows = [
            self._reader.units(replace(call.prompt, text=text + option)) for option in call.options
        ]
        if text:
            yield Need(prompt, len(prompt), space=space)
        window, length = HEALING_TOKENS, len(prompt) if text else 0
        while True:
            start = max(length - window, 0)
            for row in [prompt, *rows] if text else rows:
                yield Need(row, _limit(row, start, len(row)), space=space)
            first = min(common(prompt[start:], row[start:], 0) for row in rows) if text else 0
            if start == 0 or first > 0:
                break
            window *= 4
        if call.method.unconditional:
            for row in rows:
                alone = row[start + first :]
                yield Need(alone, _limit(alone, 0, len(alone)), space=space)


class ServiceBiller:
    """Bills calls of any other backend by the texts of the request bodies."""

    def __init__(self, reader: PromptReader) -> None:
        self._reader = reader

    def texts(self, asked: RehearsedCall) -> Iterator[Prompt]:
        return iter(())

    def bill(self, asked: RehearsedCall) -> Bill:
        call, body = asked.call, asked.request.body
        params = call.params if not isinstance(call, (Choose, Commit)) else GenParams()
        rows = self._rows(call.prompt, body)
        times = 1 if "n" in body else params.n or 1
        needs = [Need(row, len(row) - 1) for row in rows * times]
        generated = (params.max_new_tokens or 0) * (params.n or 1)
        if isinstance(call, Choose):
            generated = max(len(self._reader.behind(option)) for option in call.options)
        return Bill(tuple(needs), generated)

    def _rows(self, prompt: Prompt, body: Mapping[str, Any]) -> list[Units]:
        texts = body.get("prompt")
        if texts is not None:
            several = [texts] if isinstance(texts, str) else texts
            return [self._reader.units(Prompt(text)) for text in several]
        turns = body.get("messages", body.get("input"))
        if turns is None:
            return [self._reader.units(prompt)]
        system = body.get("system", body.get("instructions"))
        said = [("user", turns)] if isinstance(turns, str) else [
            (str(turn.get("role")), turn.get("content")) for turn in turns
        ]  # fmt: skip
        return [self._reader.conversation([("system", system), *said] if system else said)]


def _start(params: GenParams) -> int:
    """Return the index of the first prompt token whose log-probability is requested, -1: none."""
    start = params.logprob_start_len if params.return_logprob else None
    return -1 if start is None else start


def _limit(prompt: Units, start: int, free: int) -> int:
    """Return the length of the longest prefix that may be cached. ``start``: first token whose
    log-probability the token before must compute; -1: none, return ``free`` (-1: all but last)."""
    if 0 <= start < len(prompt):
        return min(max(start, 1), len(prompt)) - 1
    return len(prompt) - 1 if free < 0 else free
