"""Static: ``transformers`` generate on left-padded batches. ``spec``: ``model_path``, ``dtype``."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any

from sglang.srt.commands.bench.result import BenchCall, Result, TurnPart

from benchmark.peers.sides.wire import Request, serve
from benchmark.serving.static import Static

# Requests of one length fill one batch; where lengths differ, smaller batches pad less.
EQUAL_BATCH, MIXED_BATCH = 64, 16


class Transformers:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        sides = [Static(**spec, batch_size=size) for size in (EQUAL_BATCH, MIXED_BATCH)]
        self.equal, self.mixed = sides
        self.equal._load()
        self.mixed._model, self.mixed._tokenizer = self.equal._model, self.equal._tokenizer
        names = ("transformers", "torch")
        return {"versions": {name: version(name) for name in names}}

    def run(self, requests: list[Request]) -> dict[str, Any]:
        calls = [
            BenchCall(i, 0, [TurnPart("user", tuple(ids), "")], count)
            for i, (ids, count) in enumerate(requests)
        ]
        results = [Result(call.conversation, 0, call.output) for call in calls]
        equal = len({(len(ids), count) for ids, count in requests}) == 1
        began = perf_counter()
        (self.equal if equal else self.mixed).answer_all(calls, results)
        seconds = perf_counter() - began
        return {"seconds": seconds, "ids": [list(result.ids) for result in results]}


if __name__ == "__main__":
    serve(Transformers())
