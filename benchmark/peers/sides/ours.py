"""Ours: the engine in this process. ``spec`` is the settings of ``sglang.Engine``."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any

from benchmark.peers.sides.wire import Request, serve


class Ours:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        from sglang import Engine

        self.engine = Engine(**spec)
        return {"versions": {"sglang": version("sglang"), "torch": version("torch")}}

    def run(self, requests: list[Request]) -> dict[str, Any]:
        prompts = [ids for ids, _ in requests]
        sampling = [
            {"max_new_tokens": count, "temperature": 0, "ignore_eos": True} for _, count in requests
        ]
        began = perf_counter()
        answers = self.engine.generate(input_ids=prompts, sampling_params=sampling)
        seconds = perf_counter() - began
        return {"seconds": seconds, "ids": [answer["output_ids"] for answer in answers]}


if __name__ == "__main__":
    serve(Ours())
