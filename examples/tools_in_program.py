"""Tools as nodes of a program: the calls are traced, explained and run by the program itself."""

from __future__ import annotations

import sglang as sgl
from connect import connect
from tool_loop import calc


@sgl.function
def price(s, question):
    s += sgl.system("You can call <tool>calc(expression)</tool>.")
    s += sgl.user(question)
    with s.assistant():
        s += "<tool>calc(" + sgl.gen("sum", max_tokens=24, stop=")") + ")</tool><result>"
        s += sgl.tool("result", calc, of="sum", timeout=5, expected_seconds=0.01) + "</result>"
        s += sgl.gen("reply", max_tokens=48)
    return s["result"]


def main() -> list[str]:
    questions = ["What is 417 * 23?", "One lamp costs 128 dollars. How much do 45 of them cost?"]
    program = price.compile()  # the flow depends on no value, so it is a graph
    print(price.explain(questions[0]))
    states = list(program.run_batch([{"question": q} for q in questions], temperature=0))
    for question, state in zip(questions, states):
        print(f"{question} {state['sum']} = {state['result']}: {state['reply'].strip()}")
    return [state.ret_value for state in states]


if __name__ == "__main__":
    connect()
    main()
