"""Judge an essay in parallel: every branch looks one grade up and scores it; join, and add up."""

from __future__ import annotations

import sglang as sgl
from connect import connect

NOTES = "The clarity is good. The style is poor. The evidence is good. The humor is fair."
SCALE = "Scale: good = 8, fair = 5, poor = 2."
DIMENSIONS = ["clarity", "style", "evidence", "humor"]


@sgl.function
def judge(s, notes):
    s += sgl.user_begin() + notes + "\n"
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS):
        fork += f"What is the value of {dimension}?" + sgl.user_end()
        fork += sgl.assistant(sgl.gen("grade", max_tokens=8))
    forks.join()
    marks = score.run_batch([(grade,) for grade in s["grade"]], temperature=0)
    return dict(zip(DIMENSIONS, (mark.ret_value for mark in marks)))


@sgl.function
def score(s, grade):
    s += sgl.user(f"{SCALE}\nThe essay is {grade}.\nWhat is the score?")
    s += sgl.assistant(sgl.gen("score", max_tokens=8))
    return int(s["score"])


def main() -> tuple[dict[str, int], int]:
    scores = judge.run(NOTES, temperature=0).ret_value
    total = sum(scores.values())
    print(f"{scores}\ntotal: {total} of {8 * len(DIMENSIONS)}")
    return scores, total


if __name__ == "__main__":
    connect()
    main()
