"""OpenaiUrl: any server that speaks OpenAI's API, through the official client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

from benchmark.harness.claim import Message

TIMEOUT = 600.0


class OpenaiUrl:
    """``extra`` goes into every request's body (``ignore_eos``). Usage is summed over the calls.

    ``dialect`` is how a constraint is told: "sglang", "vllm" or "llama.cpp".
    """

    def __init__(
        self, url: str, model: str, *, extra: Mapping[str, Any] | None = None,
        dialect: str = "sglang",
    ) -> None:  # fmt: skip
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT,
                                  max_retries=0)  # fmt: skip
        self.model, self.dialect = model, dialect
        self.extra = dict(extra or {})
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        extra = {**self.extra, **self._constraint(regex, json_schema)}
        answer = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0, n=n,
            stop=list(stop) or None, extra_body=extra,
        )  # fmt: skip
        self._count(answer.usage)
        return [choice.text for choice in answer.choices]

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        answer = await self.client.chat.completions.create(
            model=self.model, messages=list(messages),  # type: ignore[arg-type]
            max_tokens=max_tokens, temperature=0, stop=list(stop) or None, extra_body=self.extra,
        )  # fmt: skip
        self._count(answer.usage)
        return answer.choices[0].message.content or ""

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        scores = await asyncio.gather(*(self._score(prompt, option) for option in options))
        return max(range(len(options)), key=scores.__getitem__)

    async def _score(self, prompt: str, option: str) -> float:
        """Mean log-probability of the option's tokens."""
        answer = await self.client.completions.create(
            model=self.model, prompt=prompt + option, max_tokens=0, temperature=0, echo=True,
            logprobs=1,
        )  # fmt: skip
        self._count(answer.usage)
        report = answer.choices[0].logprobs
        assert report is not None
        assert report.text_offset
        assert report.token_logprobs
        found = [
            value
            for at, value in zip(report.text_offset, report.token_logprobs)
            if at >= len(prompt) and value is not None
        ]
        return sum(found) / max(1, len(found))

    def _constraint(self, regex: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
        if regex:
            return {"regex": regex}
        if schema is not None:
            return {"json_schema": dict(schema)}
        return {}

    def _count(self, usage: Any) -> None:
        if usage is None:
            return
        details = getattr(usage, "prompt_tokens_details", None)
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens or 0
        self.cached_tokens += getattr(details, "cached_tokens", 0) or 0
