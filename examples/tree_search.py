"""Search over a tree of thoughts: which steps lead from one number to another?

Every node forks into its steps; the model works each one out with a calculator (see ``tool_loop``),
and the program keeps the most promising results.
"""

from __future__ import annotations

import sglang as sgl
from connect import connect
from tool_loop import calc

STEPS = ["* 13", "* 17", "* 24"]
WIDTH = 4


@sgl.function
def expand(s, number):
    """The result of each step from ``number``."""
    s += sgl.system("You can call <tool>calc(expression)</tool>.")
    forks = s.fork(len(STEPS))
    for fork, step in zip(forks, STEPS):
        fork += sgl.user(f"What is {number} {step}?")
        with fork.assistant():
            fork += sgl.gen("call", max_tokens=32, stop="</tool>")
            result = calc(fork["call"].removeprefix("<tool>calc(").removesuffix(")"))
            fork += f"</tool><result>{result}</result>" + sgl.gen("value", max_tokens=8)
    forks.join()
    return [(step, int(value)) for step, value in zip(STEPS, s["value"])]


def search(start: int, goal: int, depth: int) -> list[str] | None:
    """Breadth-first over thoughts, the ``WIDTH`` largest that do not overshoot at each level."""
    beam: list[tuple[int, list[str]]] = [(start, [])]
    for _ in range(depth):
        states = expand.run_batch([(number,) for number, _ in beam], temperature=0)
        tips = [
            (value, [*path, step])
            for (_, path), state in zip(beam, states)
            for step, value in state.ret_value
            if value <= goal
        ]
        beam = sorted(tips, reverse=True)[:WIDTH]
        if beam and beam[0][0] == goal:
            return beam[0][1]
    return None


def main() -> list[str] | None:
    path = search(12, 2652, depth=3)
    print("12", *(path or ["no way found"]), "= 2652" if path else "")
    return path


if __name__ == "__main__":
    connect()
    main()
