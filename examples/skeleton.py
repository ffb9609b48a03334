"""Skeleton of thought: first the points of an answer, then each one filled in, all at once."""

from __future__ import annotations

import re

import sglang as sgl
from connect import connect

PRICES = "The lamp costs 30 dollars. The clock costs 75 dollars. The rope costs 12 dollars."


@sgl.function
def offer(s, wishes):
    s += sgl.user("Write as a numbered list: " + wishes)
    s += sgl.assistant(sgl.gen("points", max_tokens=48))
    points = re.findall(r"\d+\. (.+)", s["points"])
    forks = s.fork(len(points))
    for fork, point in zip(forks, points):
        fork += sgl.user(f"{PRICES}\nHow much is the {point}?")
        fork += sgl.assistant(sgl.gen("price", max_tokens=8))
    forks.join()
    return dict(zip(points, s["price"]))


def main() -> dict[str, str]:
    prices: dict[str, str] = offer.run("lamp, clock and rope", temperature=0).ret_value
    print(prices)
    return prices


if __name__ == "__main__":
    connect()
    main()
