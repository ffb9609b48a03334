"""Mock: a backend without a model, for tests of a program's prompts and outputs."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.backend.base import Backend, Completion, Prompt
from sglang.errors import BackendError
from sglang.ir.chat_template import template_named
from sglang.ir.choices import ChoicesMethod, Decision, OptionScores
from sglang.ir.params import GenParams, strings
from sglang.ir.prompt_media import Media
from sglang.ir.stops import cut
from sglang.semantics.tool_calls.tool_formats import FORMATS, with_tool_turns

Reply = str | Sequence[str] | BaseException
Script = Sequence[Reply] | Mapping[str, Reply] | Callable[[Prompt, GenParams], Reply]

CHOSEN, REJECTED = -0.1, -5.0


@dataclass(frozen=True)
class MockCall:
    """One call of a program. ``kind``: "gen", "select" or "commit"."""

    kind: str
    prompt: Prompt
    params: GenParams | None = None
    options: tuple[str, ...] = ()

    @property
    def media(self) -> tuple[Media, ...]:
        """Images and videos of the prompt."""
        return self.prompt.media


class Mock(Backend):
    """Backend that answers by a script, or with the prompt's last line. ``calls`` has all calls.

    Args:
        script: a list of replies used in turn; a dict from a text in the prompt to its reply (the
            text that occurs last counts); a function of the prompt and the parameters; or None:
            the reply is the last line of the prompt. A reply is a text, several texts for
            ``n`` > 1, or an exception to raise. A ``select`` takes the reply if it is an option;
            without a script it takes the first option.
        delay: seconds before each answer.
        chat_template: name of the template used for roles.
        tool_format: format of tool calls in the script ("hermes", "llama3", "mistral",
            "pythonic", "tiny").
        constraints: kinds that the mock claims to enforce, see ``Backend``. A text of the script
            is returned unchanged, and checked only against ``one_of``.
        speculates: see ``Backend``.

    In an event loop the mock answers without a thread, so a script must not wait there.

    A token of the mock is a word with the space before it. Texts are cut at stop strings and after
    ``max_new_tokens``. The longest beginning shared with an earlier prompt counts as cached."""

    name = "mock"

    def __init__(
        self,
        script: Script | None = None,
        *,
        delay: float = 0.0,
        chat_template: str = "chatml",
        constraints: Iterable[str] = (),
        speculates: str = "",
        tool_format: str = "hermes",
    ) -> None:
        if tool_format not in FORMATS:
            raise ValueError(f"tool_format is {tool_format!r:.60}; use one of {sorted(FORMATS)}")
        self.tool_format = tool_format
        self.chat_template = with_tool_turns(template_named(chat_template), tool_format)
        self.constraints = frozenset(constraints)
        self.speculates = speculates
        self.calls: list[MockCall] = []
        self.flushes = 0
        self._script = script
        self._delay = delay
        self._next = 0
        self._seen: list[str] = []
        self._ids: dict[str, int] = {}  # ids of words
        self._lock = threading.Lock()

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        self._wait()
        return self._completed(prompt, params)

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        await asyncio.sleep(self._delay)
        return self._completed(prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        self._wait()
        yield from self._pieces(prompt, params)

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        await asyncio.sleep(self._delay)
        for piece in self._pieces(prompt, params):
            yield piece
            await asyncio.sleep(0)

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        self._wait()
        return self._chosen(prompt, options, method)

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        await asyncio.sleep(self._delay)
        return self._chosen(prompt, options, method)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        self._wait()
        return self._committed(prompt)

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        await asyncio.sleep(self._delay)
        return self._committed(prompt)

    def flush_cache(self) -> None:
        with self._lock:
            self.flushes += 1
            self._seen.clear()

    def get_server_info(self) -> dict[str, Any]:
        return {"backend": "mock", "calls": len(self.calls)}

    def _wait(self) -> None:
        if self._delay:
            time.sleep(self._delay)

    def _completed(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        reply = self._answer(MockCall("gen", prompt, params))
        n = params.n or 1
        texts = [reply] * n if isinstance(reply, str) else list(reply)
        if len(texts) != n:
            raise BackendError(f"the script gives {len(texts)} texts and n is {n}")
        return [self._finish(prompt, text, params) for text in texts]

    def _pieces(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        (whole,) = self._completed(prompt, params)
        words = _words(whole.text)
        for end in range(1, len(words)):
            yield Completion("".join(words[:end]), {**whole.meta, "finish_reason": None})
        yield whole

    def _chosen(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        answer = self._answer(MockCall("select", prompt, options=tuple(options)))
        if self._script is None:
            answer = options[0]
        if answer not in options:
            raise BackendError(f"the script says {answer!r}, which is none of {list(options)}")
        decision = decided(str(answer), options, method)
        decision.meta["usage"] = self._usage(prompt, 0)
        return decision

    def _committed(self, prompt: Prompt) -> dict[str, Any]:
        self._note(MockCall("commit", prompt))
        return self._usage(prompt, 0)

    def _note(self, call: MockCall) -> None:
        with self._lock:
            self.calls.append(call)

    def _answer(self, call: MockCall) -> str | Sequence[str]:
        self._note(call)
        reply = self._reply(call)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _reply(self, call: MockCall) -> Reply:
        script, text = self._script, call.prompt.text
        if isinstance(script, str):
            return script
        if script is None:
            lines = text.rstrip("\n").rsplit("\n", 2)
            return lines[-1]
        if isinstance(script, Mapping):
            found = max(script, key=text.rfind, default="")
            if found == "" or found not in text:
                raise BackendError(f"the script has no key that occurs in {text[-80:]!r}")
            return script[found]
        if callable(script):
            return script(call.prompt, call.params or GenParams())
        with self._lock:
            if self._next >= len(script):
                raise BackendError(f"the script has ended after {len(script)} replies")
            self._next += 1
            return script[self._next - 1]

    def _finish(self, prompt: Prompt, text: str, params: GenParams) -> Completion:
        words = _words(text)
        reason: dict[str, Any] = {"type": "stop", "matched": None}
        limit = params.max_new_tokens if params.max_new_tokens is not None else len(words)
        if len(words) > limit:
            words, reason = words[:limit], {"type": "length", "length": limit}
        text = "".join(words)
        if (found := cut(text, strings(params.stop))) is not None:
            text, reason = text[: found[0]], {"type": "stop", "matched": found[1]}
        return Completion(text, {"finish_reason": reason, **self._usage(prompt, len(_words(text)))})

    def tokenize(self, texts: Sequence[str], special: bool = True) -> list[Sequence[int]]:
        with self._lock:
            return [
                [self._ids.setdefault(word, len(self._ids)) for word in _words(text)]
                for text in texts
            ]

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        with self._lock:
            words = list(self._ids)
        return ["".join(words[number] for number in row) for row in rows]

    def _usage(self, prompt: Prompt, completion_tokens: int) -> dict[str, int]:
        with self._lock:
            shared = max((common(prompt.text, seen) for seen in self._seen), default=0)
            self._seen = [*self._seen[-63:], prompt.text]
        return {
            "prompt_tokens": len(_words(prompt.text)),
            "cached_tokens": len(_words(prompt.text[:shared])),
            "completion_tokens": completion_tokens,
        }


def decided(answer: str, options: Sequence[str], method: ChoicesMethod) -> Decision:
    """Return the decision of ``method`` for scores that make ``answer`` the most likely option."""
    ids: dict[str, int] = {}
    rows = [
        [
            [CHOSEN if option == answer else REJECTED, ids.setdefault(word, len(ids)), word]
            for word in _words(option)
        ]
        for option in options
    ]
    alone = [[[-2.0, *entry[1:]] for entry in row] for row in rows]
    return method(OptionScores(options, rows, [[] for _ in options], alone))


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def common(a: str, b: str) -> int:
    """Return the length of the common beginning of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
