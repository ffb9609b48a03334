"""Search over a tree of thoughts: which steps lead from one number to another?

The model computes every step and says which results overshoot; the program keeps the best ones.
"""

from __future__ import annotations

import sglang as sgl
from connect import connect

STEPS = ["+ 25", "+ 9", "- 6"]
WIDTH = 2


@sgl.function
def expand(s, number, goal):
    """The results of all steps from ``number``, without those that overshoot ``goal``."""
    s += sgl.user_begin()
    forks = s.fork(len(STEPS))
    for fork, step in zip(forks, STEPS):
        fork += f"What is {number} {step}?" + sgl.user_end()
        fork += sgl.assistant(sgl.gen("value", max_tokens=8))
        fork += sgl.user(f"Is {fork['value']} bigger than {goal}?")
        fork += sgl.assistant(sgl.select("overshoots", ["yes", "no"]))
    forks.join()
    found = [(step, int(value)) for step, value in zip(STEPS, s["value"])]
    return [tip for tip, over in zip(found, s["overshoots"]) if over == "no" or tip[1] == goal]


def search(start: int, goal: int, depth: int) -> list[str] | None:
    """Breadth-first over thoughts, the ``WIDTH`` nearest to the goal at each level."""
    beam: list[tuple[int, list[str]]] = [(start, [])]
    for _ in range(depth):
        items = [{"number": number, "goal": goal} for number, _ in beam]
        states = expand.run_batch(items, temperature=0)
        tips = [
            (value, [*path, step])
            for (_, path), state in zip(beam, states)
            for step, value in state.ret_value
        ]
        beam = sorted(tips, key=lambda tip: abs(goal - tip[0]))[:WIDTH]
        if beam and beam[0][0] == goal:
            return beam[0][1]
    return None


def main() -> list[str] | None:
    path = search(12, 46, depth=3)
    print("12", *(path or ["no way found"]), "= 46" if path else "")
    return path


if __name__ == "__main__":
    connect()
    main()
