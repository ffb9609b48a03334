"""OpenaiUrl: any server that speaks OpenAI's API, through the official client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

from benchmark.harness.apis.dialects import DIALECTS
from benchmark.harness.claim import Message

TIMEOUT = 600.0


class OpenaiUrl:
    """``extra`` goes into every request's body that writes text (``ignore_eos``). Usage is summed
    over the calls. ``dialect`` names one of ``DIALECTS``."""

    def __init__(
        self, url: str, model: str, *, extra: Mapping[str, Any] | None = None,
        dialect: str = "sglang",
    ) -> None:  # fmt: skip
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT,
                                  max_retries=0)  # fmt: skip
        self.model, self.dialect = model, DIALECTS[dialect]
        self.extra = dict(extra or {})
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        extra = dict(self.extra)
        if regex:
            extra |= self.dialect.regex(regex)
        if json_schema is not None:
            extra |= self.dialect.schema(json_schema)
        each = n if self.dialect.several else 1
        answers = await asyncio.gather(*(
            self.client.completions.create(
                model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0, n=each,
                stop=list(stop) or None, extra_body=extra,
            )
            for _ in range(n // each)
        ))  # fmt: skip
        for answer in answers:
            self._count(answer.usage)
        return [choice.text for answer in answers for choice in answer.choices]

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        extra = dict(self.extra)
        if messages[-1]["role"] == "assistant":  # to be gone on with
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
        answer = await self.client.chat.completions.create(
            model=self.model, messages=list(messages),
            max_tokens=max_tokens, temperature=0, stop=list(stop) or None, extra_body=extra,
        )  # fmt: skip
        self._count(answer.usage)
        return answer.choices[0].message.content or ""

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        """Every option is scored by a request of its own: side by side where a server computes the
        whole of each anyway, else one by one, or the others after the first, so that they find
        its KV."""
        if self.dialect.forced is None:
            scores = await asyncio.gather(*(self._score(prompt, option) for option in options))
        elif self.dialect.shared:
            scores = [await self._forced(prompt, options[0])]
            rest = (self._forced(prompt, option) for option in options[1:])
            scores += await asyncio.gather(*rest)
        else:
            scores = [await self._forced(prompt, option) for option in options]
        return max(range(len(options)), key=scores.__getitem__)

    async def _score(self, prompt: str, option: str) -> float:
        """Mean log-probability of the option's tokens, which the prompt's echo tells."""
        answer = await self.client.completions.create(
            model=self.model, prompt=prompt + option, max_tokens=0, temperature=0, echo=True,
            logprobs=1,
        )  # fmt: skip
        self._count(answer.usage)
        report = answer.choices[0].logprobs
        assert report is not None
        assert report.text_offset
        assert report.token_logprobs
        found: list[float] = [
            value
            for at, value in zip(report.text_offset, report.token_logprobs)
            if at >= len(prompt) and value is not None
        ]
        return sum(found) / max(1, len(found))

    async def _forced(self, prompt: str, option: str) -> float:
        """The same where no echo tells it: the option is the only text that may be written, and
        each of its tokens comes with the log-probability it has without that constraint. The
        prompt's KV can be reused."""
        assert self.dialect.forced is not None
        answer = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=len(option.encode()) + 1, temperature=0,
            logprobs=1, extra_body=self.dialect.forced(option),
        )  # fmt: skip
        self._count(answer.usage)
        found: list[float] = self.dialect.drawn(answer.choices[0].logprobs)
        return sum(found) / max(1, len(found))

    async def close(self) -> None:
        await self.client.close()

    def _count(self, usage: Any) -> None:
        if usage is None:
            return
        details = getattr(usage, "prompt_tokens_details", None)
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens or 0
        self.cached_tokens += getattr(details, "cached_tokens", 0) or 0
