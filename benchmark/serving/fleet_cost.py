"""Fleet cost: one engine and two behind one server, by processor seconds and by the clock.

    python -m benchmark.serving.fleet_cost      # one engine against two, one thread each
    python -m benchmark.serving.fleet_cost --tree old=PATH/python      # against another version

All sides run at the same time and are loaded in turns. Processor seconds of the front and of the
engines are read from the system, so that other work on the machine disturbs them less than the
clock. Texts of all sides must be equal, or the run fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import msgspec
import psutil

from benchmark.harness.command import command_parser
from benchmark.harness.rounds import ordered
from benchmark.serving.launched import PYTHON, end, launch

FLAGS = ["--threads", "1", "--dtype", "float32", "--log-level", "warning"]
TOPICS = ("river", "harbour", "orchard", "clock", "winter", "violin", "market", "comet")


@dataclass
class Load:
    """Requests of one kind, sent at once.

    Attributes:
        prompts: one for each request. tokens: generated for each. streamed: as events.
    """

    name: str
    prompts: list[str]
    tokens: int
    streamed: bool

    def body(self, prompt: str) -> dict[str, Any]:
        sampling = {"max_new_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
        return {"text": prompt, "sampling_params": sampling, "stream": self.streamed,
                "incremental_streaming_output": self.streamed}  # fmt: skip


@dataclass
class Spent:
    """Cost of one load on one side, in seconds; tokens as the server counts them."""

    front: float
    engines: float
    clock: float
    tokens: int
    cached: int
    texts: list[str]


@dataclass
class Side:
    """A launched server.

    Attributes:
        name: in the report. tree: its ``PYTHONPATH``. flags: of ``sglang.launch_server``.
        spent: by load, one entry a round.
    """

    name: str
    tree: str
    flags: list[str]
    spent: dict[str, list[Spent]] = field(default_factory=dict)
    url: str = ""
    process: Process | None = None

    async def start(self) -> None:
        """Start the server. Raises OSError where it does not start."""
        name, flags = f"side {self.name}", [*FLAGS, *self.flags]
        self.process, self.url = await launch(name, flags, self.tree)

    def cpu(self) -> tuple[float, float]:
        """Processor seconds so far: of the front, and of its engines."""
        assert self.process is not None
        front = psutil.Process(self.process.pid)
        return seconds(front), sum(map(seconds, front.children()))

    async def run(self, load: Load) -> None:
        """Send a load to the server, whose cache is empty."""
        async with httpx.AsyncClient(
            base_url=self.url, timeout=300, limits=httpx.Limits(max_connections=None)
        ) as http:
            (await http.post("/flush_cache")).raise_for_status()
            before, began = self.cpu(), time.monotonic()
            answers = await asyncio.gather(*(answer(http, load, p) for p in load.prompts))
            clock, after = time.monotonic() - began, self.cpu()
        spent = Spent(
            after[0] - before[0], after[1] - before[1], clock,
            sum(meta["completion_tokens"] for _, meta in answers),
            sum(meta["cached_tokens"] for _, meta in answers), [text for text, _ in answers],
        )  # fmt: skip
        self.spent.setdefault(load.name, []).append(spent)

    async def stop(self) -> None:
        await end(self.process)


def seconds(process: psutil.Process) -> float:
    """Processor seconds of the threads of a process, in nanoseconds where Linux counts them."""
    tasks = Path(f"/proc/{process.pid}/task")
    if not tasks.is_dir():
        times = process.cpu_times()
        return float(times.user + times.system)
    counts = [(task / "schedstat").read_text().split()[0] for task in tasks.iterdir()]
    return sum(map(int, counts)) / 1e9


async def answer(http: httpx.AsyncClient, load: Load, prompt: str) -> tuple[str, dict[str, Any]]:
    """The text, and the meta_info at its end."""
    if not load.streamed:
        reply = (await http.post("/generate", json=load.body(prompt))).raise_for_status().json()
        return reply["text"], reply["meta_info"]
    pieces = []
    async with http.stream("POST", "/generate", json=load.body(prompt)) as reply:
        reply.raise_for_status()
        async for piece in reply.aiter_bytes():
            pieces.append(piece)
    lines = b"".join(pieces).split(b"\n")
    found = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
    return "".join(event["text"] for event in found), found[-1]["meta_info"]


def loads(scale: int) -> list[Load]:
    """Independent prompts streamed, short answers, and prompts that share long beginnings."""
    alone = [f"{TOPICS[i % 8]} number {i}, as it was told:" for i in range(8 * scale)]
    words = {topic: " ".join(f"{topic} {i}" for i in range(60)) for topic in TOPICS}
    shared = [f"{words[TOPICS[i % 8]]} and then {i}" for i in range(8 * scale)]
    return [
        Load("streams", alone, 128, True),
        Load("short requests", [f"{i} {prompt}" for i in range(4) for prompt in alone], 1, False),
        Load("shared prompts", shared, 8, False),
    ]


async def measure(sides: Sequence[Side], rounds: int, scale: int) -> None:
    """Load all sides in turns. Raises OSError and ValueError where texts differ."""
    async with contextlib.AsyncExitStack() as stack:
        for side in sides:
            stack.push_async_callback(side.stop)
            await side.start()
        for turn in range(-1, rounds):
            for load in loads(scale):
                for side in ordered(sides, turn):
                    await side.run(load)
                if len({tuple(side.spent[load.name][-1].texts) for side in sides}) > 1:
                    raise ValueError(f"the texts of {load.name!r} differ between the sides")
        for side in sides:
            for found in side.spent.values():
                del found[0]  # warms up


def report(sides: Sequence[Side], scale: int) -> str:
    """Medians over the rounds, and the least of the front's cost, which noise only raises."""
    lines = []
    for load in loads(scale):
        lines.append(load.name)
        for side in sides:
            found = side.spent[load.name]
            tokens, count = found[0].tokens, len(load.prompts)
            front, engines, clock = (
                median(getattr(each, name) for each in found)
                for name in ("front", "engines", "clock")
            )
            least = min(each.front for each in found)
            lines.append(
                f"  {side.name:8} front {1e6 * front / tokens:7.1f} us a token (least"
                f" {1e6 * least / tokens:7.1f}), {1e3 * front / count:7.2f} ms a request (least"
                f" {1e3 * least / count:7.2f}); all {1e6 * (front + engines) / tokens:8.1f} us of"
                f" CPU a token; {tokens / clock:7.1f} tokens/s; {found[0].cached} cached"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmark.serving.fleet_cost", __doc__)
    parser.add_argument("--tree", default="", metavar="NAME=PATH",
                        help="the other side: one engine of another version")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scale", type=int, default=4, help="times 8 requests at once (default: 4)"
    )
    parser.add_argument("--model-path", default="", help="in place of the embedded model")
    options = parser.parse_args(arguments)
    model = ["--model-path", options.model_path, "--load-format", "dummy"]
    model = model if options.model_path else []
    sides = [Side("one", PYTHON, model)]
    if options.tree:
        name, _, path = options.tree.partition("=")
        sides.append(Side(name, path, model))
    else:
        sides.append(Side("two", PYTHON, [*model, "--dp-size", "2"]))
    asyncio.run(measure(sides, options.rounds, options.scale))
    print(report(sides, options.scale))
    return 0


if __name__ == "__main__":
    sys.exit(main())
