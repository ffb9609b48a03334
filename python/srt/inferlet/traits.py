"""Traits: sets of calls that a model has, each with the traits that it needs (Pie, section 4.4)."""

from __future__ import annotations

from sglang.srt.engine.info import EngineInfo

SUPERTRAITS: dict[str, tuple[str, ...]] = {
    "core": (),
    "allocate": (),
    "forward": ("allocate",),
    "input_text": ("allocate", "forward"),
    "input_image": ("allocate", "forward"),
    "tokenize": ("input_text",),
    "output_text": ("allocate",),
    # Beyond the paper.
    "adapter": ("forward",),
    "sample": ("forward",),
    "hidden": ("forward",),
    "logits": ("output_text",),
    "lease": (),
}


def closed(traits: set[str]) -> set[str]:
    """Traits with all that they need."""
    found: set[str] = set()
    waiting = list(traits)
    while waiting:
        trait = waiting.pop()
        if trait not in found:
            found.add(trait)
            waiting += SUPERTRAITS[trait]
    return found


def traits_of(info: EngineInfo) -> tuple[str, ...]:
    """Traits of the model that an engine serves, in the order of the table.

    A model whose positions have three parts has no pages for programs, and one that generates
    nothing has the runtime's calls alone.
    """
    named = {"core"}
    if info.purpose == "generate":
        named |= {"lease"}
        if not info.sections:
            named |= {"tokenize", "output_text", "sample", "hidden", "logits"}
            if info.lora:
                named |= {"adapter"}
    have = closed(named)
    return tuple(trait for trait in SUPERTRAITS if trait in have)
