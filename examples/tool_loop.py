"""Tools: the model writes a call, the program computes it and puts the result back."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

import sglang as sgl
from connect import connect

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def calc(text: str) -> int:
    """The value of a sum, difference or product of whole numbers."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError(f"cannot compute {text!r}")

    return value(ast.parse(text.strip(), mode="eval").body)


@sgl.function
def ask(s, question):
    s += sgl.system("You can call <tool>calc(expression)</tool>.")
    s += sgl.user(question)
    with s.assistant():
        s += sgl.gen("reply", max_tokens=48, stop="</tool>")
        while s["reply"].startswith("<tool>calc("):
            expression = s["reply"].removeprefix("<tool>calc(").removesuffix(")")
            s += f"</tool><result>{calc(expression)}</result>"
            s += sgl.gen("reply", max_tokens=48, stop="</tool>")
    return s["reply"].strip()


def main() -> list[str]:
    questions = ["What is 417 * 23?", "One lamp costs 128 dollars. How much do 45 of them cost?"]
    states = [ask.run(question, temperature=0) for question in questions]
    for question, state in zip(questions, states):
        print(f"{question} {state.ret_value}")
    return [state.ret_value for state in states]


if __name__ == "__main__":
    connect()
    main()
