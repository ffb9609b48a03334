"""Claim: a server that restarts with KV on disk gives the first token of a prompt of 4,000 tokens
at least 5 times sooner than one that computes the prompt.

    python -m benchmark.interception.warm_disk [--pairs 3] [--tokens 4096]

The model has 15.7 million parameters with random weights. One process computes prompts and ends
when they are on disk. A second one on the same directory is sent each of these prompts, and one of
the same length that nothing knows before each, in turns. The first tokens of the known prompts must
be those of the first process.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmark.harness.command import command_parser
from benchmark.models import SHAPES, cached

CLAIM = 5.0
SEED = 1
WRITING_SECONDS = 120.0


def prompt_of(number: int, tokens: int) -> list[int]:
    """A prompt that is a function of its number."""
    r = random.Random(number)
    return [r.randrange(SHAPES["S"].vocab) for _ in range(tokens)]


def first_token(engine: Any, prompt: list[int]) -> tuple[float, int, int]:
    """Return the seconds to the first token, the token, and the tokens read from disk."""
    began = time.perf_counter()
    out = engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1, "temperature": 0})
    return time.perf_counter() - began, out["output_ids"][0], out["meta_info"]["disk_tokens"]


def settle(engine: Any) -> None:
    """Wait until nothing is written any more."""
    before, until = -1, time.monotonic() + WRITING_SECONDS
    while time.monotonic() < until:
        now = engine.get_server_info()["stats"]["disk_written_bytes"]
        if now == before:
            return
        before = now
        time.sleep(0.5)


def serve(directory: str, model: str, pairs: int, tokens: int, warm: bool) -> None:
    """One process: compute the known prompts and wait for the disk, or (``warm``) take the time of
    known and unknown ones. Prints JSON."""
    import sglang as sgl

    known = [prompt_of(SEED + n, tokens) for n in range(pairs)]
    found: list[Any] = []
    with sgl.Engine(
        model_path=model, log_level="warning", max_total_tokens=(2 * pairs + 2) * tokens,
        enable_hierarchical_cache=True, hicache_ratio=2.0, hicache_storage_dir=directory,
        hicache_storage_size=4.0,
    ) as engine:  # fmt: skip
        first_token(engine, prompt_of(-1, 64))  # kernels and threads are there
        for n, prompt in enumerate(known):
            for one in ([prompt_of(1000 + n, tokens)] if warm else []) + [prompt]:
                settle(engine)
                found.append(first_token(engine, one))
        settle(engine)
    print(json.dumps(found))


def child(*arguments: str) -> list[tuple[float, int, int]]:
    """Run ``serve`` in a process of its own and return what it found."""
    out = subprocess.run(
        [sys.executable, "-m", "benchmark.interception.warm_disk", "--serve", *arguments],
        stdout=subprocess.PIPE, check=True, env=dict(os.environ),
    ).stdout  # fmt: skip
    return [tuple(entry) for entry in json.loads(out.splitlines()[-1])]


def main() -> int:
    parser = command_parser("benchmark.interception.warm_disk", __doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--serve", nargs=3, metavar=("DIR", "MODEL", "WARM"), help="a child")
    options = parser.parse_args()
    if options.serve:
        directory, model, warm = options.serve
        serve(directory, model, options.pairs, options.tokens, warm == "warm")
        return 0
    root = Path(tempfile.gettempdir()) / "sglang-benchmark-models"
    model = str(cached(root, "S", "float32"))
    sizes = ("--pairs", str(options.pairs), "--tokens", str(options.tokens))
    with tempfile.TemporaryDirectory() as directory:
        before = child(directory, model, "cold", *sizes)
        after = child(directory, model, "warm", *sizes)
    cold, warm = after[::2], after[1::2]
    for number, (one, two) in enumerate(zip(cold, warm)):
        print(f"pair {number}: computed {one[0]:.3f} s, read {two[0]:.3f} s ({two[2]} from disk), "
              f"{one[0] / two[0]:.1f}x")  # fmt: skip
    ratio = statistics.median(one[0] / two[0] for one, two in zip(cold, warm))
    equal = [entry[1] for entry in before] == [entry[1] for entry in warm]
    read = all(entry[2] for entry in warm) and not any(entry[2] for entry in cold)
    print(f"median {ratio:.1f}x (claim {CLAIM}x); tokens {'equal' if equal else 'DIFFER'}")
    return 0 if ratio >= CLAIM and equal and read else 1


if __name__ == "__main__":
    raise SystemExit(main())
