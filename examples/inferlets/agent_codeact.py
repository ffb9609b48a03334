"""CodeACT agent: the model acts by writing Python, which runs here, inside of the program.

A line behind ">>> " is code; its value or exception is the line behind it, and only that line is
computed anew. The code sees arithmetic alone: no import, attribute or name but those of TOOLS.
Arguments: the task, most turns, most tokens of a line.
"""

from __future__ import annotations

import ast

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

TASK = ">>> 2 + 3\n5\n>>> max(4, 7)\n7\n"
TOOLS = {"max": max, "min": min, "abs": abs, "sum": sum, "round": round, "len": len}
ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Call, ast.Name,
    ast.List, ast.Tuple, ast.Load, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def act(code: str) -> str:
    """The value of one expression, or why it has none."""
    try:
        tree = ast.parse(code.strip(), mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, ALLOWED) or isinstance(node, ast.Pow):
                return f"{type(node).__name__} is not allowed"
            if isinstance(node, ast.Name) and node.id not in TOOLS:
                return f"name {node.id!r} is not defined"
        return str(eval(compile(tree, "act", "eval"), {"__builtins__": {}}, TOOLS))[:80]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]


async def main(ctx: Ctx) -> list[tuple[str, str]]:
    task, turns, most = ctx.get_arg() or ("", "3", "12")
    text = await Context(ctx).fill(TASK + task)
    acts = []
    for _ in range(int(turns)):
        await text.fill(">>>")
        start = len(text.tokens)
        code = (await text.generate_until(int(most), stop=at_text("\n"))).split("\n")[0]
        result = act(code)
        acts.append((code, result))
        end = "" if (await text.text(start)).endswith("\n") else "\n"
        await text.fill(f"{end}{result}\n")
    await text.free()
    return acts
