"""GuidanceApi: the guidance library on llama.cpp in this process, as the paper ran it. One call
after the other, as it has no batches; what the last call's prompt began with, it does not compute
again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmark.harness.claim import Message

BATCH = 512  # prompt tokens of a pass


class GuidanceApi:
    """``model_path``: a GGUF file. A text ends where the model samples its end token: there is no
    way to have it sampled like others."""

    def __init__(self, model_path: str, *, context: int, threads: int) -> None:
        import guidance
        import guidance.models

        self._guidance = guidance
        # Neither a page nor probabilities are made beside the texts.
        self._model = guidance.models.LlamaCpp(
            model_path, echo=False, enable_monitoring=False, n_ctx=context, n_batch=BATCH,
            n_threads=threads, n_threads_batch=threads,
        )  # fmt: skip
        self.versions = {name: version(name) for name in ("guidance", "llama-cpp-python")}

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        if json_schema is not None:
            asked = self._guidance.json("text", schema=dict(json_schema), max_tokens=max_tokens)
        else:
            asked = self._guidance.gen(
                "text", max_tokens=max_tokens, stop=list(stop) or None, regex=regex or None
            )
        return [(self._model + prompt + asked)["text"] for _ in range(n)]

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        if any(not isinstance(message["content"], str) for message in messages):
            raise NotImplementedError("this side of guidance reads text alone")
        roles = self._guidance
        said = self._model
        for message in messages:
            with getattr(roles, message["role"])():
                said += message["content"]
        with roles.assistant():
            said += roles.gen("text", max_tokens=max_tokens, stop=list(stop) or None)
        return str(said["text"])

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        """Choose by guidance's ``select``: the option that greedy decoding comes to."""
        chosen = (self._model + prompt + self._guidance.select(list(options), name="text"))["text"]
        return list(options).index(chosen)
