"""HTTP: a server started here, and the load generator of ``benchmark.serving`` that asks it.

``spec``: ``command`` (a list; ``{port}`` stands for a free port), ``protocol`` and ``extra`` of
``sglang.srt.commands.bench.server_target``, ``environment`` of the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from time import monotonic
from typing import Any

from sglang.srt.commands.bench.load import offer
from sglang.srt.commands.bench.load_client import HttpError
from sglang.srt.commands.bench.result import Result
from sglang.srt.commands.bench.server_target import Asking, Endpoint
from sglang.srt.commands.bench.workload import Conversation, Turn

from benchmark.harness.server import free_port
from benchmark.peers.sides.wire import Request, serve

READY_SECONDS = 600.0
ANSWER_SECONDS = 600.0


class Http:
    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        port = free_port()
        command = [part.replace("{port}", str(port)) for part in spec["command"]]
        self.server = subprocess.Popen(
            command, stdout=sys.stderr, env={**os.environ, **spec.get("environment", {})}
        )
        asking = Asking(model=spec.get("model", ""), extra=spec.get("extra", {}))
        self.url = (spec["protocol"], f"http://127.0.0.1:{port}", asking)
        asyncio.run(self._ready())
        return {"versions": {}}

    async def _ready(self) -> None:
        """Wait until the server answers. Raises OSError where it ends, or does not answer in
        time."""
        until = monotonic() + READY_SECONDS
        while True:
            if self.server.poll() is not None:
                raise OSError(f"the server ended with {self.server.returncode}")
            endpoint = Endpoint(*self.url)
            try:
                await endpoint.start()
                return
            except (HttpError, OSError) as error:
                if monotonic() > until:
                    raise OSError(f"no answer within {READY_SECONDS:g} s: {error}") from error
                await asyncio.sleep(0.2)
            finally:
                await endpoint.close()

    def run(self, requests: list[Request]) -> dict[str, Any]:
        results = asyncio.run(self._answers(requests))
        for result, (_, count) in zip(results, requests, strict=True):
            if result.error or result.output_tokens != count:
                told = result.error or f"{result.output_tokens} tokens of {count}"
                raise OSError(f"request {result.conversation}: {told}")
        return {
            "seconds": max(r.end for r in results) - min(r.sent for r in results),
            "ids": [list(result.ids) for result in results],
            "ttft": [result.ttft for result in results],
        }

    async def _answers(self, requests: list[Request]) -> list[Result]:
        endpoint = Endpoint(*self.url)
        talks = [
            Conversation(i, (Turn(tuple(ids), count),)) for i, (ids, count) in enumerate(requests)
        ]
        try:
            await endpoint.start()
            run = await offer(endpoint, talks, [0.0] * len(talks), timeout=ANSWER_SECONDS)
        finally:
            await endpoint.close()
        return sorted(run.results, key=lambda result: result.conversation)

    def close(self) -> None:
        self.server.terminate()


if __name__ == "__main__":
    side = Http()
    try:
        serve(side)
    finally:
        side.close()
