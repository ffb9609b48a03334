"""Requests of a select: which ``/generate`` requests score its options, and what they decide.

The client sends them for a program that it interprets; the server makes the same ones for a program
that it runs itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from sglang.ir.choices import ChoicesMethod, Decision, OptionScores

# Tokens before the boundary whose ids are compared first to see where tokenizations part.
HEALING_TOKENS = 8
# Parameters of a request that computes its prompt and generates nothing.
COMPUTED = {"sampling_params": {"max_new_tokens": 0}}

T = TypeVar("T")
# Requests, each answered before the next; what is returned is the result of them all.
Requests: TypeAlias = Generator[dict[str, Any], Any, T]


def choice_requests(
    text: str,
    media: Mapping[str, Sequence[Any]],
    adapter: Mapping[str, str],
    options: Sequence[str],
    method: ChoicesMethod,
    by_rows: bool = False,
) -> Requests[Decision]:
    """Yield requests, each answered before the next; return the decision.

    One request has the server score all options as the branches of a tree of tokens, each shared
    beginning once. Images and videos, and servers that cannot, have a request for each row:
    ``by_rows``. The numbers are the same.

    A tokenizer may join the end of the prompt with the beginning of an option, so each option
    is tokenized together with the prompt, and all of them are scored from the first token at
    which any leaves the prompt's own tokens.

    Args:
        text: the prompt. media: its images and videos, as a request has them.
        adapter: ``{"lora_path": NAME}``, or nothing.
        by_rows: the server takes no ``options``.
    """
    if method.generates:
        return _written(text, {**media, **adapter}, options)
    if media or by_rows:
        return _RowScoring(text, media, adapter, options).decide(method)
    return _decision(text, adapter, options, method)


def _decision(
    text: str, adapter: Mapping[str, str], options: Sequence[str], method: ChoicesMethod
) -> Requests[Decision]:
    fields = {**adapter, "return_text_in_logprobs": True}
    answer = yield {"text": text, "options": list(options), **fields}
    metas = [answer["meta_info"]]
    tokens, alone = metas[0]["option_logprobs"], []
    if method.unconditional:
        ids = [[entry[1] for entry in row] for row in tokens]
        answer = yield {"input_ids": [], "options": ids, **fields}
        metas.append(answer["meta_info"])
        alone = metas[1]["option_logprobs"]
    tokens, alone = _listed(tokens), _listed(alone)
    decision = method(OptionScores(options, tokens, [[] for _ in options], alone))
    decision.meta["usage"] = _sum_usage(metas)
    return decision


class NoChoice(ValueError):
    """The server's text is none of the options."""


def _written(text: str, fields: Mapping[str, Any], options: Sequence[str]) -> Requests[Decision]:
    """The option that the model writes, token by token, held to the options.

    Raises NoChoice where the request ended before that: it was aborted, or had no room.
    """
    most = max(len(option.encode("utf-8", "surrogatepass")) for option in options)
    settings = {
        "choices": list(dict.fromkeys(options)), "temperature": 0.0, "max_new_tokens": most + 1,
    }  # fmt: skip
    answer = yield {"text": text, **fields, "sampling_params": settings}
    if answer["text"] not in options:
        raise NoChoice(_no_choice(answer["text"], answer["meta_info"].get("finish_reason") or {}))
    meta = dict(answer["meta_info"])
    return Decision(answer["text"], {**meta, "usage": _sum_usage([meta])})


def _no_choice(text: str, finish: Mapping[str, Any]) -> str:
    """The reason for a text that is none of the options."""
    said = f"{text!r:.80} is none of the options"
    if finish.get("type") == "length":
        most = finish.get("length")
        return (
            f"stopped after {most} tokens, where the context was full: {said}; shorten the prompt"
        )
    return f"{said}: the request ended with {finish.get('message') or dict(finish)}"


def _listed(rows: Any) -> list[list[list[Any]]]:
    return [[list(entry) for entry in row] for row in rows]


@dataclass
class _RowScoring:
    """One request computes the shared prefix, a second scores all options in one batch. The prompt
    is itself in that batch.

    Attributes: as of ``choice_requests``; ``metas``: meta_info of the answers so far."""

    text: str
    media: Mapping[str, Sequence[Any]]
    adapter: Mapping[str, str]
    options: Sequence[str]
    metas: list[dict[str, Any]] = field(default_factory=list)

    def decide(self, method: ChoicesMethod) -> Requests[Decision]:
        length = 0
        if self.text:
            answer = yield {"text": self.text, **self.media, **self.adapter, **COMPUTED}
            self.metas.append(dict(answer["meta_info"]))
            length = int(self.metas[0]["prompt_tokens"])
        window = HEALING_TOKENS
        while True:
            start = max(length - window, 0)
            own, rows, outputs = yield from self._score(start)
            first = min(_shared(own, row) for row in rows)
            # The first entry may lack its log-probability, and a split there may lie further left.
            if start == 0 or first > 0:
                break
            window *= 4
        tokens = [row[first:] for row in rows]
        alone = (yield from self._score_alone(tokens)) if method.unconditional else ()
        decision = method(OptionScores(self.options, tokens, outputs, alone))
        decision.meta["usage"] = _sum_usage(self.metas)
        return decision

    def _score(self, start: int) -> Requests[tuple[list[Any], list[list[Any]], list[Any]]]:
        """Entries from token ``start`` on of the prompt and of prompt + option; output entries."""
        text = self.text
        texts = [text, *(text + option for option in self.options)] if text else [*self.options]
        media = {name: [found] * len(texts) for name, found in self.media.items()}
        answers = yield {"text": texts, **media, **self.adapter, **_scoring(start)}
        infos = [answer["meta_info"] for answer in answers]
        self.metas.extend(infos)
        own = list(infos.pop(0)["input_token_logprobs"]) if text else []
        rows = [list(info["input_token_logprobs"]) for info in infos]
        return own, rows, [info.get("output_token_logprobs") for info in infos]

    def _score_alone(self, tokens: list[list[Any]]) -> Requests[list[list[Any]]]:
        ids = [[entry[1] for entry in row] for row in tokens]
        answers = yield {"input_ids": ids, **self.adapter, **_scoring(0)}
        infos = [answer["meta_info"] for answer in answers]
        self.metas.extend(infos)
        return [list(info["input_token_logprobs"]) for info in infos]


def _scoring(start: int) -> dict[str, Any]:
    return {
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": start,
    }


def _shared(own: list[Any], row: list[Any]) -> int:
    """Return the number of leading tokens that two scored sequences share."""
    for index, (a, b) in enumerate(zip(own, row)):
        if a[1] != b[1]:
            return index
    return min(len(own), len(row))


def _sum_usage(metas: list[dict[str, Any]]) -> dict[str, int]:
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    return {name: sum(int(meta.get(name) or 0) for meta in metas) for name in names}
