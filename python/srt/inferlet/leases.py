"""Leases: generations that a program leaves to the server, as ordinary completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sglang.srt.inferlet.packed_numbers import unpacked

Body = dict[str, Any]


class Leases:
    """``complete`` answers a body of ``/generate``."""

    def __init__(self, complete: Callable[[Body], Awaitable[Any]]) -> None:
        self._complete = complete

    async def generate(self, text: str, tokens: Sequence[int] | bytes, params: Body) -> Body:
        """The completion of a prompt: text, token ids, why it ended, counts of tokens. Raises
        ValueError where ``params`` ask for several."""
        params = dict(params)
        logprobs = bool(params.pop("logprobs", False))
        body: Body = {"sampling_params": params, **_prompt(text, tokens)}
        if logprobs:
            body["return_logprob"] = True
        answer = await self._complete(body)
        if not isinstance(answer, dict):
            raise ValueError("params ask for several completions (n); make one call for each")
        meta = answer["meta_info"]
        found = {
            "text": answer["text"],
            "tokens": list(answer.get("output_ids", ())),
            "finish": meta["finish_reason"],
            "prompt_tokens": meta["prompt_tokens"],
            "cached_tokens": meta["cached_tokens"],
        }
        if logprobs:
            found["logprobs"] = [one[0] for one in meta["output_token_logprobs"]]
        return found

    async def select(
        self, text: str, tokens: Sequence[int] | bytes, choices: Sequence[str]
    ) -> Body:
        """Index and text of the likeliest choice after a prompt, and each one's log-probability
        a token."""
        params = {"choices": list(choices), "choices_scoring": "whole"}
        answer = await self._complete({"sampling_params": params, **_prompt(text, tokens)})
        scores = answer["meta_info"]["choice_logprobs"]
        index = list(choices).index(answer["text"])
        return {"index": index, "text": answer["text"], "logprobs": scores}


def _prompt(text: str, tokens: Sequence[int] | bytes) -> Body:
    ids = unpacked(tokens)
    if bool(ids) == bool(text):
        raise ValueError("give text or tokens, one of them")
    return {"input_ids": list(ids)} if ids else {"text": text}
