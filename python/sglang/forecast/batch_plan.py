"""Plan: what a batch will have computed, request by request, and the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang.backend.base import Backend, Commit
from sglang.backend.service_backend import ApiBackend
from sglang.batch.run_batch import Batch
from sglang.errors import SglangError
from sglang.forecast.billing import Prices
from sglang.forecast.cache_model import Cache
from sglang.forecast.comparison import Comparison
from sglang.forecast.doubts import doubts
from sglang.forecast.explain import rehearsed
from sglang.forecast.needs import Bill, Biller, Native, Service
from sglang.forecast.prompt_reader import Reader
from sglang.forecast.prompt_tree import Branch, shown, tree_of
from sglang.forecast.rehearsal import Answers
from sglang.forecast.script import Asked, PlanScript, ahead
from sglang.forecast.token_units import tokens_of
from sglang.forecast.unknowns import Unknowns
from sglang.ir.location import Location
from sglang.ir.params import GenParams
from sglang.state import ProgramState

if TYPE_CHECKING:
    from sglang.program import SglFunction


class Planned(NamedTuple):
    """One call. ``item`` is the number of its item, None for what is computed ahead of all items;
    ``told_cached`` is what the backend will tell as cached: it counts a prompt once for each of
    ``n`` completions, and not that they compute its last token each."""

    item: int | None
    title: str
    location: Location
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    told_cached: int


@dataclass(frozen=True)
class Plan:
    """What a batch will need, if nothing of it is in the cache before and nothing is evicted.

    Attributes:
        items: how many.
        calls: each call, in an order in which they may be made.
        tree: the prompts as a prefix tree, by namespace and beginning.
        counted: how tokens were counted, "" where as the backend does.
        kv_tokens: tokens of KV that all prompts and texts have together, where each is as long as
            it may become; kv_capacity: how many the backend has room for, None where unknown.
        cost: dollars, None without prices.
        warning: what may make it come out otherwise, "" where nothing is known.
    """

    items: int
    calls: tuple[Planned, ...]
    tree: tuple[Branch, ...]
    counted: str
    kv_tokens: int
    kv_capacity: int | None
    cost: float | None
    warning: str

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted as often as it is sent."""
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that need not be computed."""
        return sum(call.cached_tokens for call in self.calls)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens to compute."""
        return sum(call.computed_tokens for call in self.calls)

    @property
    def completion_tokens(self) -> int:
        """Tokens to generate, at most."""
        return sum(call.completion_tokens for call in self.calls)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that is found in the cache."""
        return self.cached_tokens / (self.prompt_tokens or 1)

    def compare(self, states: ProgramState | Sequence[ProgramState]) -> Comparison:
        """The plan beside what has happened: the states that ``run`` or ``run_batch`` gave for the
        items of the plan."""
        several = [states] if isinstance(states, ProgramState) else list(states)
        if len(several) != self.items:
            raise ValueError(f"the plan is for {self.items} items, not {len(several)} states")
        return Comparison.of(self, [state.usage for state in several])

    def __str__(self) -> str:
        return shown(self)

    __repr__ = __str__


def plan(
    program: SglFunction,
    backend: Backend,
    items: Sequence[Mapping[str, Any]],
    defaults: GenParams,
    *,
    answers: Answers | Sequence[Answers] | None,
    lengths: Mapping[str, int] | None,
    prices: Mapping[str, float] | None,
    media_tokens: int | None,
) -> Plan:
    """See ``SglFunction.plan``."""
    costs = Prices.of(prices)
    lengths = _checked({} if lengths is None else lengths, media_tokens)
    given = _for_each(len(items), {} if answers is None else answers)
    unknowns = Unknowns()
    asked = _asked(program, backend, items, defaults, given, lengths, unknowns)
    tokens = tokens_of(backend)
    reader = Reader(tokens, unknowns, backend.chat_template, media_tokens)
    biller: Biller = Native(backend, reader) if backend.native else Service(reader)
    reader.prepare(prompt for one in asked for prompt in biller.texts(one))
    bills = [biller.bill(one) for one in asked]
    serves = not isinstance(backend, ApiBackend)
    facts = backend.get_server_info() if backend.native else {}
    cache = Cache(facts.get("page_size", 1), not facts.get("disable_radix_cache", False))
    calls = []
    for one, bill in zip(asked, bills):
        found = [cache.read(need) for need in bill.needs]
        if not serves:
            found = [costs.hit(count) for count in found]
        calls.append(_planned(one, bill, found))
    kv_tokens, capacity = len(cache), facts.get("capacity")
    made = Plan(
        len(items), tuple(calls), tree_of(cache, reader, tokens), tokens.said, kv_tokens,
        capacity, None, doubts(asked, bills, given, lengths, unknowns, kv_tokens, facts, serves),
    )  # fmt: skip
    return replace(made, cost=costs.cost(made))


def _checked(lengths: Mapping[str, int], media_tokens: int | None) -> Mapping[str, int]:
    """The lengths. Raises ValueError for what is none."""
    if not isinstance(lengths, Mapping):
        raise ValueError(f"lengths is {lengths!r:.60}; give a dict of tokens by name")
    of_media = [] if media_tokens is None else [("media_tokens", media_tokens)]
    for name, length in [*lengths.items(), *of_media]:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ValueError(f"the length of {name} is {length!r}; give tokens, at least 0")
    return lengths


def _for_each(items: int, answers: Any) -> list[Answers]:
    """The answers of each item. Raises ValueError where they are for others."""
    given = list(answers) if isinstance(answers, (list, tuple)) else [answers] * items
    if len(given) != items:
        raise ValueError(f"there are answers for {len(given)} items and {items} items")
    return given


def _asked(
    program: SglFunction,
    backend: Backend,
    items: Sequence[Mapping[str, Any]],
    defaults: GenParams,
    given: Sequence[Answers],
    lengths: Mapping[str, int],
    unknowns: Unknowns,
) -> list[Asked]:
    """The calls of all items, one item after the other."""
    found: list[Asked] = []
    batch = Batch(program, items, backend, defaults, limit="auto")
    if text := batch._prefix():
        prefix = batch._ahead(text)
        body = backend.request(Commit(prefix))
        found += [ahead(prefix, body)] if body else []
    used: set[str] = set()
    for number, (item, own) in enumerate(zip(items, given)):
        script = PlanScript(number, own, lengths, unknowns, found)
        try:
            rehearsed(script, program, backend, (), item, defaults)
        except SglangError as error:
            raise type(error)(f"item {number}: {error}") from error
        used |= script.used
    unused = {*lengths, *(name for own in given for name in own)} - used
    if unused and items:
        raise SglangError(
            f"no call asks for {min(unused)!r}, for which there is an answer or a length"
        )
    return found


def _planned(asked: Asked, bill: Bill, found: list[int]) -> Planned:
    needs = bill.needs
    computed = sum(len(need.prompt) - hit for need, hit in zip(needs, found))
    if bill.several:
        prompt, told = len(needs[0].prompt) * bill.several, found[0] * bill.several
    else:
        prompt, told = sum(len(need.prompt) for need in needs), sum(found)
    title, location, _ = asked.request
    return Planned(
        asked.item, title, location, prompt, max(prompt - computed, 0), computed, bill.drawn, told
    )
