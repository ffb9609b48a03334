"""Script: placeholder answers of known length for the rehearsal of a program; records the calls."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sglang.backend.base import Call, Choose, Commit, Prompt
from sglang.backend.tool_invocation import ToolInvocation
from sglang.errors import SglangError
from sglang.forecast.rehearsal import Answers, RehearsedRequest, Script
from sglang.forecast.unknowns import Unknowns
from sglang.ir.nodes import REASONING
from sglang.ir.params import GenParams, given
from sglang.ir.sampling import CHOICE, names_of
from sglang.ir.source_location import Location

# Parameters that do not change the first tokens of a text.
LENGTHS = ("max_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos")


@dataclass(frozen=True)
class RehearsedCall:
    """A call, its request, and the texts of its answer.

    ``item``: index of the batch's item, None for a call that is made before all items.
    """

    item: int | None
    request: RehearsedRequest
    call: Call
    texts: tuple[str, ...] = ()


class PlanScript(Script):
    """The answers in the rehearsal of one item.

    Args:
        lengths: tokens of each variable without an answer, by name. A variable that is missing gets
            the greatest number of tokens that its call allows.
        calls: calls of all items; this rehearsal appends its calls.
    """

    def __init__(
        self,
        item: int,
        answers: Answers,
        lengths: Mapping[str, int],
        unknowns: Unknowns,
        calls: list[RehearsedCall],
    ) -> None:
        super().__init__(answers)
        self._item, self._lengths = item, lengths
        self._unknowns, self._calls = unknowns, calls

    @property
    def used(self) -> set[str]:
        """Return the names of variables whose answers or lengths the calls used."""
        return set(self._used)

    def note(self, title: str, body: dict[str, Any], call: Call) -> None:
        super().note(title, body, call)
        if body and not (isinstance(call, Commit) and not call.prompt.text):
            self._calls.append(RehearsedCall(self._item, self.requests[-1], call))

    def replied(self, texts: list[str]) -> None:
        self._calls[-1] = replace(self._calls[-1], texts=tuple(texts))

    def returned(self, call: ToolInvocation) -> str:
        """Return the answer of a tool's call, or a text of the length in ``lengths``. Raise
        SglangError if it has neither, because a tool's text has no limit."""
        name = call.node.name
        if name in self.answers:
            return super().returned(call)
        if name not in self._lengths:
            raise SglangError(
                f"the text {name!r} of tool {call.node.tool!r} may have any length; give lengths="
                f"{{{name!r}: tokens}}, or its text in answers"
            )
        self._used[name] += 1
        key = self._item, "tool", self._used[name]
        return self._unknowns.pair((*key, name), name, self._lengths[name])

    def text(self, name: str | None, number: int = 0) -> str:
        """Return a text of the requested length. A repeated greedy call gets the same text."""
        call = self._calls[-1].call if self._calls else None
        known = name in self.answers or (name or "").endswith(REASONING)
        if known or call is None or isinstance(call, (Choose, Commit)):
            return super().text(name, number)
        length = call.params.max_new_tokens or 0
        if name is not None and name in self._lengths:
            self._used[name] += 1
            length = min(length, self._lengths[name])
        key = _key(call.prompt, call.params, number, len(self._calls))
        return self._unknowns.pair(key, name or "gen", length) if length else ""


def _key(prompt: Prompt, params: GenParams, number: int, place: int) -> Hashable:
    """Return a key of everything that the first tokens of an answer depend on."""
    values = {name: value for name, value in given(params).items() if name not in LENGTHS}
    if params.temperature == 0:
        values = {name: value for name, value in values.items() if name not in names_of(CHOICE)}
        number = 0
    elif params.seed is None:
        return place, number
    media = tuple(medium.address for medium in prompt.media)
    return prompt.text, media, prompt.parallel, prompt.lora_path, repr(values), number


def ahead(prompt: Prompt, body: dict[str, Any]) -> RehearsedCall:
    """Return the call that a batch makes before its items."""
    return RehearsedCall(
        None, RehearsedRequest("ahead of the batch", Location("", 0), body), Commit(prompt)
    )
