"""``make histories``: random histories of the engine, as many as one likes, from any seed.

``test/pure/srt/engine/test_simulation.py`` runs 1,000 of them. Prints a progress bar, and
the seed of every history that breaks a promise with how to replay it: then the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from multiprocessing import Pool

from helpers.simulation import simulate

CHUNK = 100  # histories that a process runs before it reports
WIDTH = 30  # characters of the progress bar
MOST_FAILURES = 10


def run(seeds: range) -> tuple[Counter[str], list[str]]:
    """Count the events of the histories, and list the failures."""
    seen, failures = Counter[str](), []
    for seed in seeds:
        try:
            seen += simulate(seed).seen
        except AssertionError as error:
            failures.append(str(error))
    gc.collect()
    return seen, failures


def collect_seldom() -> None:
    """Leave garbage to ``run``: collecting it as it comes takes a tenth of the time."""
    gc.freeze()
    gc.disable()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make histories", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="histories")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    for name in ("count", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    logging.disable(logging.CRITICAL)  # injected faults are logged by the thousand
    end = options.seed + options.count
    chunks = [range(at, min(at + CHUNK, end)) for at in range(options.seed, end, CHUNK)]
    seen, failures, began = Counter[str](), 0, time.monotonic()
    with Pool(min(options.jobs, len(chunks)), collect_seldom) as pool:
        results: Iterable[tuple[Counter[str], list[str]]] = pool.imap_unordered(run, chunks)
        for done, (found, broken) in enumerate(results, 1):
            seen += found
            failures += len(broken)
            for message in broken:
                print(f"\r{message}".ljust(WIDTH + 50), flush=True)
            bar(min(done * CHUNK, options.count), options.count, time.monotonic() - began)
            if failures >= MOST_FAILURES:
                print(f"\nstopped after {failures} failures")
                return 1
    print()
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    print(f"{failures} of {options.count} histories from seed {options.seed} on broke a promise")
    return 1 if failures else 0


def bar(done: int, count: int, seconds: float) -> None:
    """Print how far it is, over the line of before."""
    rate = done / max(seconds, 1e-9)
    filled = "#" * (WIDTH * done // count)
    left = (count - done) / max(rate, 1e-9)
    line = f"[{filled:<{WIDTH}}] {done}/{count}, {rate:.0f} a second, {left / 60:.0f} min left"
    print(f"\r{line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
