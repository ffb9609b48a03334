"""``python -m benchmark.crowded``: decoding while other programs compute on the same cores.

A request is decoded alone, then beside programs that never rest. Two engines take turns, one on all
cores and one on a single core; the tokens must be the same. The claim: beside one busy program, a
token of the first takes at most 1.3 times as long as one of the second.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

from sglang import Engine

from benchmark.harness.command import command_parser
from benchmark.harness.machine import machine
from benchmark.harness.records import append
from benchmark.models import SHAPES, cached
from benchmark.peers.__main__ import CACHE

MOST = 1.3  # times what one core takes, beside one busy program
BUSY = "while True: pass"
PROMPT = list(range(100, 228))


@dataclass
class Contender:
    """An engine of some threads: its seconds a token by the number of busy programs."""

    name: str
    engine: Engine
    tokens: int
    seconds: dict[int, list[float]] = field(default_factory=dict)
    answers: list[list[int]] = field(default_factory=list)

    def warm_up(self) -> None:
        """One request that does not count."""
        self._generate(self.tokens)

    def decode(self, busy: int) -> None:
        """One request. The first token, which the prompt is computed for, is not counted."""
        begun = perf_counter()
        self._generate(1)
        first = perf_counter() - begun
        begun = perf_counter()
        self.answers.append(self._generate(self.tokens))
        each = (perf_counter() - begun - first) / (self.tokens - 1)
        self.seconds.setdefault(busy, []).append(each)

    def _generate(self, count: int) -> list[int]:
        params = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        self.engine.flush_cache()
        answer = self.engine.generate(input_ids=PROMPT, sampling_params=params)
        return list(answer["output_ids"])


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the claim holds and all tokens are the same, else 1."""
    parser = command_parser("benchmark.crowded", __doc__)
    add = parser.add_argument
    add("--size", default="S", choices=list(SHAPES), help="default: %(default)s")
    add("--busy", type=int, nargs="*", default=[0, 1, 2], help="numbers of busy programs")
    add("--tokens", type=int, default=200, help="of a request; default: %(default)s")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--cache", type=Path, default=CACHE, help="folder of the weights; default: %(default)s")
    add("--output-file", default="", help="append one JSON line a row")
    given = parser.parse_args(arguments)
    about = machine()
    print(f"{about['machine']}, {about['cores']} cores, load {about['load']}, {about['commit']}")
    path = str(cached(given.cache, given.size))
    with _engine(path, 0) as all_cores, _engine(path, 1) as one:
        sides = [
            Contender("all cores", all_cores, given.tokens),
            Contender("one core", one, given.tokens),
        ]
        for count in given.busy:
            for side in sides:
                side.warm_up()
            with busy_programs(count):
                for _ in range(given.rounds):
                    for side in sides:
                        side.decode(count)
    rows = [
        {"busy": count, "threads": side.name, "ms a token": 1e3 * median(side.seconds[count])}
        for count in given.busy
        for side in sides
    ]
    for row in rows:
        print(
            f"{row['busy']} busy programs, {row['threads']:10} {row['ms a token']:8.2f} ms a token"
        )
    if given.output_file:
        append(given.output_file, *({**row, "machine": about} for row in rows))
    return _verdict(sides)


def _verdict(sides: Sequence[Contender]) -> int:
    if any(answer != sides[0].answers[0] for side in sides for answer in side.answers):
        print("wrong: the tokens are not all the same")
        return 1
    times = [median(side.seconds[1]) for side in sides if 1 in side.seconds]
    if times and times[0] > MOST * times[1]:
        print(
            f"missed: beside a busy program all cores take {times[0] / times[1]:.2f} times as long"
        )
        return 1
    return 0


def _engine(path: str, threads: int) -> Engine:
    """An engine of some threads; 0: as many as there are cores."""
    return Engine(
        model_path=path, dtype="bfloat16", threads=threads, max_total_tokens=4096, log_level="error"
    )


@contextmanager
def busy_programs(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that compute without end, for as long as the context is entered."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()


if __name__ == "__main__":
    sys.exit(main())
