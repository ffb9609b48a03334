"""Judge an essay in parallel: fork, ask each branch about one dimension, join, give a score."""

from __future__ import annotations

import sglang as sgl
from connect import connect

NOTES = (
    "Notes on an essay about the garden: The clarity is strong. The style is weak. "
    "The evidence is great. The humor is excellent."
)
DIMENSIONS = ["clarity", "style", "evidence", "humor"]


@sgl.function
def judge(s, notes):
    s += sgl.user_begin() + notes + "\n"
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS):
        fork += f"Is the {dimension} good or bad?" + sgl.user_end()
        fork += sgl.assistant(sgl.select("verdict", ["good", "bad"]))
    forks.join()
    good = s["verdict"].count("good")
    overall = "good" if 2 * good > len(DIMENSIONS) else "poor"
    return overall


@sgl.function
def score(s, overall):
    s += sgl.user(f"Scale: good = 8, poor = 2.\nThe essay is {overall}.\nWhat is the score?")
    s += sgl.assistant(sgl.gen("score", max_tokens=8))
    return int(s["score"])


def main() -> tuple[dict[str, str], int]:
    state = judge.run(NOTES, temperature=0)
    verdicts = dict(zip(DIMENSIONS, state["verdict"]))
    points = score.run(state.ret_value, temperature=0).ret_value
    print(f"{verdicts}\nscore: {points}")
    return verdicts, points


if __name__ == "__main__":
    connect()
    main()
