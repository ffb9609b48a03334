"""A pattern shown by examples: the shots are shared, so the model reads them once."""

from __future__ import annotations

import sglang as sgl
from connect import connect

SHOTS = {"cold box": "box cold", "old lamp": "lamp old", "bright door": "door bright"}


@sgl.function
def follow(s, text):
    for given, result in SHOTS.items():
        s += f"Input: {given}\nOutput: {result}\n"
    s += "Input: " + text + "\nOutput:" + sgl.gen("output", max_tokens=16, stop="\n")
    return s["output"].strip()


def main() -> list[str]:
    inputs = ["dusty rope", "happy book", "clean chair"]
    states = follow.run_batch([(text,) for text in inputs], temperature=0)
    for text, state in zip(inputs, states):
        print(f"{text} -> {state.ret_value}")
    return [state.ret_value for state in states]


if __name__ == "__main__":
    connect()
    main()
