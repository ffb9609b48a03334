"""Claim: where each message takes 100 to 150 ms, a chain of calls that is sent whole ends at least
1.4 times as early as one that the client runs call by call, with equal texts.

    python -m benchmark.applications.chains [--steps 8] [--tokens 40] [--rounds 3] [--model DIR]

A real server with a real model, by default the embedded one. The client speaks to it through a
proxy that delays each message and counts those to the server. The two ways take turns.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import httpx

from benchmark.harness.command import command_parser
from benchmark.harness.server import Server
from benchmark.models import EMBEDDED
from benchmark.peers.child import ROOT

DELAY = (0.1, 0.15)  # seconds of a message
CLAIMED = 1.4
READY_SECONDS = 120.0


class DelayingProxy:
    """TCP proxy in a thread, in which each message arrives later.

    Args:
        port: of the server.

    Attributes:
        port: of the proxy. messages: number of those to the server.
    """

    def __init__(self, port: int) -> None:
        self.messages = self.port = 0
        self._server, self._random = port, random.Random(0)
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        """Stop the thread."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        found = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = found.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server)
        with suppress(asyncio.CancelledError):  # at the proxy's end
            await asyncio.gather(self._carry(reader, back, True), self._carry(there, writer, False))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool
    ) -> None:
        """Pass on what comes, each piece after its delay and in order."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                moment, data = await queue.get()
                await asyncio.sleep(moment - time.monotonic())
                if not data:
                    writer.close()
                    return
                writer.write(data)

        task = asyncio.create_task(write())
        last = 0.0
        while True:
            data = b""
            with suppress(OSError):
                data = await reader.read(1 << 16)
            self.messages += counted and bool(data)
            last = max(last, time.monotonic() + self._random.uniform(*DELAY))
            queue.put_nowait((last, data))
            if not data:
                await task
                return


def part(seed: int, step: int) -> str:
    """Text before a call."""
    return f"\nNotes {seed}, part {step}: "


def by_client(client: httpx.Client, seed: int, steps: int, tokens: int) -> list[str]:
    """Run the chain call by call. Return its texts."""
    text, found = "", []
    for step in range(steps):
        text += part(seed, step)
        settings = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        reply = client.post("/generate", json={"text": text, "sampling_params": settings})
        found.append(reply.raise_for_status().json()["text"])
        text += found[-1]
    return found


def by_server(client: httpx.Client, seed: int, steps: int, tokens: int) -> list[str]:
    """Send the chain whole. Return its texts."""
    settings = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    nodes: list[dict[str, Any]] = []
    for step in range(steps):
        body = {"sampling_params": settings}
        nodes.append({"number": 2 * step, "op": "text", "text": part(seed, step)})
        nodes.append({"number": 2 * step + 1, "op": "gen", "name": f"x{step}", "body": body})
    stream = {"stream": 0, "begin": None, "steps": nodes}
    graph = {"name": "chain", "streams": [stream], "arguments": {}}
    reply = client.post("/v1/submit", json={"graph": graph, "stream": True})
    lines = reply.raise_for_status().text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][1:]
    if events[-1].get("state") != "done":
        raise RuntimeError(f"the chain has ended with {events[-1]}")
    done = {event["step"]: event for event in events if event["event"] == "done"}
    return [done[2 * step + 1]["answers"][0]["text"] for step in range(steps)]


def main() -> int:
    parser = command_parser("benchmark.applications.chains", __doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=EMBEDDED)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"client": [], "server": []}
    messages: dict[str, int] = {}
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(options.model),
               "--port", "{port}", "--schedule-policy", "app"]  # fmt: skip
    with TemporaryDirectory() as folder, ExitStack() as stack:
        server = Server(command, Path(folder) / "log", {"PYTHONPATH": str(ROOT / "python")})
        stack.callback(server.close)
        server.ready(READY_SECONDS)
        proxy = DelayingProxy(server.port)
        with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=600) as client:
            by_server(client, 999, 2, 4)  # opens the connection
            for seed in range(options.rounds):
                texts = []
                for name, way in (("client", by_client), ("server", by_server)):
                    before, began = proxy.messages, time.monotonic()
                    texts.append(way(client, 2 * seed, options.steps, options.tokens))
                    seconds[name].append(time.monotonic() - began)
                    messages[name] = proxy.messages - before
                if texts[0] != texts[1]:
                    print("the texts differ")
                    return 1
        proxy.close()
    ratio = median(seconds["client"]) / median(seconds["server"])
    for name, values in seconds.items():
        print(f"{name}: {median(values):.2f} s ({min(values):.2f}-{max(values):.2f}), "
              f"{messages[name]} messages to the server")  # fmt: skip
    print(f"{options.steps} steps, each {median(seconds['server']) / options.steps:.2f} s in the "
          f"server: {ratio:.2f} times; the paper 1.38")  # fmt: skip
    return 0 if ratio >= CLAIMED else 1


if __name__ == "__main__":
    sys.exit(main())
