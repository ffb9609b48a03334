"""NativeBackend: the calls of the interpreter as requests to the native ``/generate``.

``RuntimeEndpoint`` sends them over HTTP and ``Engine`` hands them to the program in this process;
both answer with the same dicts, so everything else is shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang.backend.base import Backend, Completion, Prompt
from sglang.choices import ChoicesMethod, Decision, Scores
from sglang.errors import BackendError
from sglang.params import GenParams, to_wire

# Tokens before the boundary whose ids are compared first to see where tokenizations part.
HEALING_TOKENS = 8


class NativeBackend(Backend):
    """Needs only ``call`` and ``call_stream``."""

    def call(self, body: dict[str, Any]) -> Any:
        """Answer of a ``/generate`` request: a dict, or a list of them. Raises BackendError."""
        raise NotImplementedError

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answers of a streamed request, text cumulative. Raises BackendError."""
        raise NotImplementedError

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        answer = self.call({"text": prompt.text, **to_wire(params)})
        answers = answer if isinstance(answer, list) else [answer]
        return [_completion(item) for item in answers]

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        for item in self.call_stream({"text": prompt.text, **to_wire(params), "stream": True}):
            yield _completion(item)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        if not prompt.text:
            return {}
        return dict(self._fill(prompt.text)["meta_info"])

    def _fill(self, text: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.call({"text": text, "sampling_params": {"max_new_tokens": 0}})
        return answer

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        """One request computes the shared prefix, a second scores all options in one batch.

        A tokenizer may join the end of the prompt with the beginning of an option, so each option
        is tokenized together with the prompt, and all of them are scored from the first token at
        which any leaves the prompt's own tokens. For that the prompt is itself in the batch.
        """
        length = 0
        metas: list[dict[str, Any]] = []
        if prompt.text:
            metas.append(self._fill(prompt.text)["meta_info"])
            length = int(metas[0]["prompt_tokens"])
        window = HEALING_TOKENS
        while True:
            start = max(length - window, 0)
            own, rows, outputs = self._score(prompt.text, options, start, metas)
            parts = [_shared(own, row) for row in rows]
            first = min(parts)
            # The first entry may lack its log-probability, and a split there may lie further left.
            if start == 0 or first > 0:
                break
            window *= 4
        tokens = [row[first:] for row in rows]
        alone = self._score_alone(tokens, metas) if method.unconditional else ()
        decision = method(Scores(options, tokens, outputs, alone))
        decision.meta["usage"] = _sum_usage(metas)
        return decision

    def _score(
        self, text: str, options: Sequence[str], start: int, metas: list[dict[str, Any]]
    ) -> tuple[list[Any], list[list[Any]], list[Any]]:
        """Entries from token ``start`` on of the prompt and of prompt + option; output entries."""
        texts = [text + option for option in options]
        answers = self.call(
            {
                "text": [text, *texts] if text else texts,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": start,
            }
        )
        infos = [answer["meta_info"] for answer in answers]
        metas.extend(infos)
        own = list(infos.pop(0)["input_token_logprobs"]) if text else []
        rows = [list(info["input_token_logprobs"]) for info in infos]
        return own, rows, [info.get("output_token_logprobs") for info in infos]

    def _score_alone(self, tokens: list[list[Any]], metas: list[dict[str, Any]]) -> list[list[Any]]:
        answers = self.call(
            {
                "input_ids": [[entry[1] for entry in row] for row in tokens],
                "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": 0,
            }
        )
        infos = [answer["meta_info"] for answer in answers]
        metas.extend(infos)
        return [list(info["input_token_logprobs"]) for info in infos]


def _shared(own: list[Any], row: list[Any]) -> int:
    """How many leading tokens two scored sequences have in common."""
    for index, (a, b) in enumerate(zip(own, row)):
        if a[1] != b[1]:
            return index
    return min(len(own), len(row))


def _completion(answer: dict[str, Any]) -> Completion:
    """Raises BackendError where the runtime gave the request up."""
    meta = answer["meta_info"]
    finish = meta.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") in ("abort", "error"):
        raise BackendError(f"the request was aborted: {finish.get('message') or finish}")
    return Completion(answer["text"], meta)


def _sum_usage(metas: list[dict[str, Any]]) -> dict[str, int]:
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    return {name: sum(int(meta.get(name) or 0) for meta in metas) for name in names}
