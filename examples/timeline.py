"""A program that one can look at: where its time went, which tokens came from the cache."""

from __future__ import annotations

import re
import time

import sglang as sgl
from connect import connect

PRICES = "The lamp costs 30 dollars. The clock costs 75 dollars. The rope costs 12 dollars."
DOLLARS = {"input": 0.15, "cached": 0.015, "output": 0.6}  # per million tokens


def in_stock(point: str) -> bool:
    """Stands for a tool that takes its time."""
    time.sleep(0.02)
    return point != "clock"


@sgl.function
def offer(s, wishes):
    s += sgl.user("Write as a numbered list: " + wishes)
    s += sgl.assistant(sgl.gen("points", max_tokens=48))
    points = re.findall(r"\d+\. (.+)", s["points"])
    points = [point for point in points if in_stock(point)]
    forks = s.fork(len(points))
    for fork, point in zip(forks, points):
        fork += sgl.user(f"{PRICES}\nHow much is the {point}?")
        fork += sgl.assistant(sgl.gen("price", max_tokens=8))
    forks.join()
    return dict(zip(points, s["price"]))


def main(path: str | None = None) -> dict[str, str]:
    with sgl.tracing(path, prices=DOLLARS) as trace:
        prices: dict[str, str] = offer.run("lamp, clock and rope", temperature=0).ret_value
    totals = trace.totals()
    print(prices)
    print(f"{totals['requests']} requests, {totals['hit_rate']:.0%} of the prompts from the cache")
    print(f"${totals['cost']:.6f}, and {totals['code_seconds']:.3f} s in the program's own code")
    return prices


if __name__ == "__main__":
    connect()
    main("timeline.html")
