"""``python -m benchmark.frontend``: what the language costs, against the same requests by hand.

Three tables, of medians over rounds taken in turns, with the least and the most in brackets:
microseconds a primitive over a backend in this process that answers at once; programs over HTTP
beside the same requests sent by an httpx client, to a server that answers at once, in a process of
its own; batches beside asyncio clients of the same concurrency, on that server and on a real one
with the embedded model. Texts must be equal, and on the instant server the requests too.

It fails where an answer differs, where a primitive costs more than 100 us beyond its requests, or
where a batch is slower than the asyncio client with httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import sglang as sgl

from benchmark.frontend import batches, primitives, requests
from benchmark.frontend.instant import server
from benchmark.harness.command import command_parser
from benchmark.harness.rounds import WrongAnswer
from benchmark.harness.tables import Row, told


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.frontend", __doc__)
    add = out.add_argument
    add("--rounds", type=int, default=7, help="default: %(default)s")
    add("--uses", type=int, default=200, help="of a primitive in a program; default: %(default)s")
    add("--items", type=int, default=400, help="of a batch; default: %(default)s")
    add("--real-items", type=int, default=64, help="of a batch on the embedded model; 0: none")
    add("--output-file", default="", help="append one JSON line a row")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where answers are equal and no limit is missed, else 1."""
    options = _parser().parse_args(arguments)
    loop = asyncio.new_event_loop()
    try:
        tables = _measure(options, loop)
    except WrongAnswer as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        loop.close()
    return told(tables, options)


def _measure(options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> dict[str, list[Row]]:
    rounds, uses = options.rounds, options.uses
    own = primitives.measure(loop, rounds, uses)
    with server() as url:
        sent = requests.measure(url, loop, rounds, uses)
        whole = batches.measure("server that answers at once", url, loop, rounds, options.items)
    if options.real_items:
        with sgl.Runtime(log_level="warning") as runtime:
            whole += batches.measure(
                "embedded model", runtime.url, loop, rounds, options.real_items
            )
    return {
        "us a primitive, no server": own,
        "us a step, over HTTP": sent,
        "ms an item of two gens, 64 at once": whole,
    }


if __name__ == "__main__":
    sys.exit(main())
