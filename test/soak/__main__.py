"""``make soak``: a server, everything that clients do, and kills, for half an hour.

The seed decides everything, except the interleaving, which depends on the machine: with an odd one
the server has KV in host memory. Prints a line every ten seconds and a summary. Exit status 1 if a
requirement was violated:

- every request has one end, the right one: its answer, an error that had a reason, or its client's
  own going;
- golden requests give the bytes of the beginning;
- at rest (every two minutes) the accounts are exact: KV memory, requests in the engine and over
  HTTP, descriptors, threads, processes; no audit has failed; the log holds no traceback;
- the server's memory does not grow;
- SIGTERM in the middle of it ends everything in order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from soak.run import MIB, Pace, Run, soak


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=24, help="clients at a time")
    parser.add_argument("--quiet", type=float, default=120.0, help="seconds between two accounts")
    parser.add_argument(
        "--kill", type=float, default=45.0, help="mean seconds between two kills of processes"
    )
    options = parser.parse_args(arguments)
    pace = Pace(options.minutes * 60, options.workers, options.quiet, options.kill)
    run = soak(pace, options.seed, tell)
    summary(run)
    if run.violations:
        again = f"MINUTES={options.minutes:g} SEED={options.seed}"
        print(f"FAILED; again: make soak {again}", *run.violations, sep="\n  ")
        return 1
    print("ok: every request had one end, and the accounts are exact")
    return 0


def tell(line: str) -> None:
    print(line, flush=True)


def summary(run: Run) -> None:
    books = run.books
    print(f"\n{run.seconds:.0f} s, {books.sent} requests, {books.counted} reached the server")
    for title, counts in (("ends", books.ways), ("errands", books.errands), ("kills", run.kills)):
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"{title}: {told or 'none'}")
    print("server:", ", ".join(f"{name} {count:.0f}" for name, count in run.metrics.items()))
    server = [size / MIB for size, _ in run.memory]
    engines = [size / MIB for _, size in run.memory]
    print(f"accounts: {len(run.memory)}, all exact; MiB at each, server and engine:")
    print(" ", " ".join(f"{a:.0f}+{b:.0f}" for a, b in zip(server, engines)))


if __name__ == "__main__":
    sys.exit(main())
