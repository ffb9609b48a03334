"""The command: the claim as any other's, then the same by DSPy itself, where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmark.dspy_rag.claim import CLAIM
from benchmark.dspy_rag.pipeline import replies
from benchmark.harness import main as runs
from benchmark.harness.claim import Scale
from benchmark.harness.records import append
from benchmark.harness.text_model import checkpoint


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: that of the claim, or 1 where DSPy sends anything else than the program."""
    options = runs.parser(CLAIM).parse_args(argv)
    status = runs.main(CLAIM, argv)
    if status or options.base_url or options.backend != "sglang":
        return status  # DSPy is for the engine that is measured, in a process of its own
    model = str(checkpoint(options.size)) if options.size else options.model_path
    try:
        found = replies(Scale(options.items, options.long), options.seed, model)
    except FileNotFoundError as error:
        print(f"{CLAIM.name}: without DSPy itself: {error}")
        return 0
    except OSError as error:
        print(f"{CLAIM.name}: {error}", file=sys.stderr)
        return 1
    cached = 100 * found["cached_tokens"] / found["prompt_tokens"]
    print(
        f"{CLAIM.name}, DSPy {found['dspy']} on our engine: {options.items} in "
        f"{found['seconds']:.2f} s, {options.items / found['seconds']:.2f} a second, "
        f"{found['prompt_tokens']} prompt tokens, {cached:.1f} % cached, the same prompts"
    )
    if options.output_file:
        append(options.output_file, {"claim": CLAIM.name, "mode": "dspy", **found})
    return 0
