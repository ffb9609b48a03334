"""Tools that the model calls: one gen runs them and gives the model their results."""

from __future__ import annotations

import sglang as sgl
from connect import connect
from tool_loop import calc


@sgl.function
def solve(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=48, tools=[calc]))
    return s["answer"]


def main() -> list[str]:
    questions = [
        "What is 417 * 23?",
        "One lamp costs 128 dollars. How much do 45 of them cost?",
        "What is the capital of France?",
    ]
    states = list(solve.run_batch([{"question": q} for q in questions], temperature=0))
    for question, state in zip(questions, states):
        calls = [f"{c['arguments']['text']} = {c['result']}" for c in state["answer_calls"]]
        print(f"{question} {state.ret_value} {calls}")
    return [state.ret_value for state in states]


if __name__ == "__main__":
    connect()
    main()
