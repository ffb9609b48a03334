"""Doubts: assumptions of a plan that may be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sglang.backend.base import Choose
from sglang.forecast.needs import Bill
from sglang.forecast.rehearsal import Answers
from sglang.forecast.script import RehearsedCall
from sglang.forecast.unknowns import STANDS, Unknowns

NAMED = 4  # number of unknown values that a warning lists
SERVICE = "an API service keeps its cache as it likes: cached tokens are a hope"


def doubts(
    asked: Sequence[RehearsedCall],
    bills: Sequence[Bill],
    given: Sequence[Answers],
    lengths: Mapping[str, int],
    unknowns: Unknowns,
    needed: int,
    facts: Mapping[str, Any],
    serves: bool,
) -> str:
    """Return the warnings of a plan, "" for none.

    ``facts``: server info of the backend. ``serves``: the backend runs the model itself, unlike an
    API service. ``needed``: KV tokens of the plan."""
    found = [
        *_of_values(asked, given, lengths, unknowns),
        *(_of_the_runtime(bills, needed, facts) if serves else [SERVICE]),
    ]
    return "; ".join(found)


def _of_values(
    asked: Sequence[RehearsedCall],
    given: Sequence[Answers],
    lengths: Mapping[str, int],
    unknowns: Unknowns,
) -> Iterator[str]:
    """Yield warnings about unknown generated values."""
    stands = {found for one in asked for found in re.findall(STANDS, one.call.prompt.text)}
    texts = {unknown.label for text in stands if (unknown := unknowns.of(text)) is not None}
    if guessed := texts - lengths.keys():
        yield (
            f"prompts hold texts that nobody knows yet ({_some(guessed)}), each taken to be as "
            "long as it may: answers or lengths tell better"
        )
    if chosen := set(_chosen(asked, given)):
        yield f"a select takes its first option ({_some(chosen)}) and the program goes on from it"


def _chosen(asked: Sequence[RehearsedCall], given: Sequence[Answers]) -> Iterator[str]:
    """Yield the names of selects without an answer that their item's later calls depend on."""
    last = {one.item: one for one in asked}
    for one in asked:
        if isinstance(one.call, Choose) and one.item is not None and one is not last[one.item]:
            name = one.request.title.partition(" ")[2]
            if name not in given[one.item]:
                yield name or "select"


def _some(names: Iterable[str]) -> str:
    """Return the first ``NAMED`` names in alphabetical order, as text."""
    shown = sorted(names)
    return ", ".join([*shown[:NAMED], *(["..."] if len(shown) > NAMED else [])])


def _of_the_runtime(bills: Sequence[Bill], needed: int, facts: Mapping[str, Any]) -> Iterator[str]:
    capacity, context = facts.get("capacity"), facts.get("context_length")
    if capacity is not None and needed > capacity:
        yield (
            f"all prompts and texts together have up to {needed:,} tokens of KV and the backend "
            f"has room for {capacity:,} (max_total_tokens): what is evicted before it is met again "
            "is computed again, so there may be fewer hits"
        )
    longest = max((len(n.prompt) for bill in bills for n in bill.needs), default=0)
    if context is not None and longest > context:
        yield f"a prompt has {longest:,} tokens and the backend takes {context:,}: it is refused"
