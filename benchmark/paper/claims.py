"""Claims: every workload of the paper by name, imported when it is used."""

from __future__ import annotations

from importlib import import_module

from benchmark.harness.claim import Claim

NAMES = (
    "few_shot", "hellaswag", "react", "generative_agents", "tree_of_thought", "multi_chain",
    "skeleton_of_thought", "llm_judge", "json_regex", "json_schema", "multi_turn_short",
    "multi_turn_long", "mt_bench", "line_retrieval", "multi_document_qa", "dspy_rag", "image_qa",
    "api_speculation",
)  # fmt: skip
"""In the order of the report."""

APART = SEEING, PAID = "image_qa", "api_speculation"
"""Measured in tables of their own."""
TEXT = tuple(name for name in NAMES if name not in APART)

PARALLEL = ("line_retrieval", "multi_document_qa")
"""Encoded in parallel, which plain client code cannot ask for: another computation."""

PROMISED = (
    "few_shot", "hellaswag", "react", "tree_of_thought", "llm_judge", "json_regex", "json_schema",
    "multi_turn_short", "multi_turn_long",
)  # fmt: skip
"""Those with a ``speedup`` to be held to."""

ABLATED = (
    "few_shot", "react", "generative_agents", "tree_of_thought", "skeleton_of_thought",
    "llm_judge", "multi_turn_short", "json_regex",
)  # fmt: skip
"""What Fig. 8(c) is measured on."""


class Broken(Exception):
    """A claim cannot be had; the text names it."""


def claim(name: str) -> Claim:
    """Return the claim of a name. Raises Broken where its module is missing, does not load, or
    holds a claim of another name."""
    try:
        found = import_module(f"benchmark.{name}.claim").CLAIM
    except Exception as error:
        raise Broken(f"{name}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Claim) or found.name != name:
        raise Broken(f"{name}: benchmark/{name}/claim.py has no CLAIM of this name")
    return found
