"""The command: the claim's runs as any other's, then both bills."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.api_speculation.bill import bills
from benchmark.api_speculation.claim import CLAIM
from benchmark.harness import main as runs
from benchmark.harness.claim import Scale
from benchmark.harness.records import append


def main(argv: Sequence[str] | None = None) -> int:
    """1 where answers differ."""
    options = runs.parser(CLAIM).parse_args(argv)
    status = runs.main(CLAIM, argv)
    if status:
        return status
    found = bills(CLAIM.items(Scale(options.items, options.long), options.seed))
    print(told(found))
    if options.output_file:
        append(options.output_file, {"claim": CLAIM.name, "mode": "bill", **found})
    return 0 if found["equal"] else 1


def told(found: dict[str, object]) -> str:
    """Text of the bills: a line for each, and a verdict."""
    lines = []
    for name in ("without", "with"):
        one = found[name]
        assert isinstance(one, dict)
        lines.append(
            f"{name} speculation: {one['calls']} calls, {one['prompt_tokens']} input tokens, "
            f"{one['completion_tokens']} output tokens, {one['left']} times off the form"
        )
    same = "the same answers" if found["equal"] else "OTHER ANSWERS"
    return "\n".join([*lines, f"{found['fewer_input_tokens']:.2f} times fewer, {same}"])
