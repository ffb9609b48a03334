"""``python -m benchmark.grammars.worker CONTENDER VOCABULARY_FILE``: one contender in a process of
its own, which may be killed.

Reads one JSON object a line, {"kind", "text", "texts": lists of token ids, "masks"}, and writes
one: {"ms"} of compiling, {"accepted"} by text, and with masks {"cold", "warm"}: microseconds a mask
of the first and of a second walk; or {"refused"}. The first line it writes is {"ready"}. Times are
of the processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmark.grammars.contenders import CONTENDERS, Tokens, Walker, accepts

MEMORY = 8 << 30  # bytes of address space, torch's own among them


def main(name: str, path: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to the log
    contender = CONTENDERS[name](Tokens(path))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(contender, json.loads(line))), file=out, flush=True)


def answer(contender: Any, ask: dict[str, Any]) -> dict[str, Any]:
    began = time.process_time()
    try:
        make = contender.compile(ask["kind"], ask["text"])
    except (Exception, KeyboardInterrupt) as error:  # a library's panic is no Exception
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return {"refused": f"panic: {error}"[:300]}
    out: dict[str, Any] = {"ms": 1e3 * (time.process_time() - began)}
    if ask["masks"]:
        out["cold"] = [time_ for ids in ask["texts"] for time_ in masks(make, ids)]
        out["warm"] = [time_ for ids in ask["texts"] for time_ in masks(make, ids)]
    out["accepted"] = [accepts(make, ids) for ids in ask["texts"]]
    forced = [count(make, ids) for ids, good in zip(ask["texts"], out["accepted"]) if good]
    out["forced"] = [sum(found) for found in zip(*forced)] or [0, 0]
    return out


def masks(make: Callable[[], Walker], ids: list[int]) -> list[float]:
    """Microseconds of the mask before each token, and of the one before the end."""
    walker, found = make(), []
    for token in [*ids, None]:
        began = time.thread_time()
        walker.mask()
        found.append(1e6 * (time.thread_time() - began))
        if token is None or not walker.advance(token):
            break
    return found


def count(make: Callable[[], Walker], ids: list[int]) -> tuple[int, int]:
    """(tokens that were the only ones possible, tokens), where the contender tells."""
    walker: Any = make()
    if not hasattr(walker, "forced"):
        return 0, len(ids)
    forced = 0
    for token in ids:
        forced += walker.forced() == [token]
        walker.advance(token)
    return forced, len(ids)


if __name__ == "__main__":
    main(*sys.argv[1:])
