"""Plan: forecast of a batch's tokens and cost, call by call and in total."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sglang.backend.base import Backend, Commit
from sglang.backend.service_backend import ApiBackend
from sglang.batch.run_batch import ProgramBatch
from sglang.errors import SglangError
from sglang.forecast.cache_model import Cache
from sglang.forecast.doubts import doubts
from sglang.forecast.explanation import rehearsed
from sglang.forecast.needs import Bill, Biller, NativeBiller, ServiceBiller
from sglang.forecast.prompt_reader import PromptReader
from sglang.forecast.prompt_tree import Branch, tree_lines, tree_of
from sglang.forecast.rehearsal import Answers
from sglang.forecast.script import PlanScript, RehearsedCall, ahead
from sglang.forecast.token_units import tokens_of
from sglang.forecast.unknowns import Unknowns
from sglang.ir.params import GenParams
from sglang.ir.source_location import Location
from sglang.run.run_scope import Usage
from sglang.state import Program, ProgramState
from sglang.views.prices import checked_prices

Item = Mapping[str, Any] | Sequence[Any]  # arguments by name or in order

SHORTEST, STEP = 1024, 128  # least tokens of a hit in API services' caches, and their granularity
MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens. ``cached``: None if cached tokens have no lower price, or the
    service's cache is ignored. ``known``: prices were given."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    known: bool = False

    @classmethod
    def of(cls, prices: Mapping[str, float] | None) -> Prices:
        """Return the prices of a mapping. Raises ValueError for a price that is missing or
        invalid."""
        if prices is None:
            return cls()
        found = checked_prices(prices)
        for name in ("input", "output"):
            if name not in found:
                raise ValueError(f"prices has no {name!r}; give dollars for a million tokens")
        return cls(**found, known=True)

    def hit(self, tokens: int) -> int:
        """Return the tokens that a service bills as cached for a repeated prefix of ``tokens``."""
        if self.cached is None or tokens < SHORTEST:
            return 0
        return tokens - tokens % STEP

    def cost(self, computed: int, cached: int, generated: int) -> float | None:
        """Return dollars for these tokens; None if no prices are known."""
        if not self.known:
            return None
        hit = self.input if self.cached is None else self.cached
        return (computed * self.input + cached * hit + generated * self.output) / MILLION


class Planned(NamedTuple):
    """Forecast of one call. ``item``: index of its item, None for the call before all items.
    ``told_cached``: cached tokens that the backend will report. The report counts a prompt once for
    each of ``n`` completions, and ignores that each computes the prompt's last token."""

    item: int | None
    title: str
    location: Location
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    completion_tokens: int
    told_cached: int


class Compared(NamedTuple):
    """A planned count and the real one."""

    name: str
    planned: int
    happened: int

    @property
    def error(self) -> float:
        """Error of the plan, relative to the real count."""
        return (self.planned - self.happened) / (self.happened or 1)


@dataclass(frozen=True)
class Comparison:
    """Planned and real counts of the items, without the call that a batch makes before them."""

    rows: tuple[Compared, ...]

    @classmethod
    def of(cls, planned: Sequence[Planned], used: Sequence[Usage]) -> Comparison:
        calls = [call for call in planned if call.item is not None]
        prompt = sum(call.prompt_tokens for call in calls)
        cached = sum(call.told_cached for call in calls)
        drawn = sum(call.completion_tokens for call in calls)
        was_prompt = sum(usage.prompt_tokens for usage in used)
        was_cached = sum(usage.cached_tokens for usage in used)
        return cls(
            (
                Compared("prompt tokens", prompt, was_prompt),
                Compared("cached", cached, was_cached),
                Compared("computed", prompt - cached, was_prompt - was_cached),
                Compared("generated", drawn, sum(usage.completion_tokens for usage in used)),
            )
        )

    @property
    def error(self) -> float:
        """Error of the number of tokens to compute, relative to the real count."""
        return next(row.error for row in self.rows if row.name == "computed")

    def __str__(self) -> str:
        lines = [f"{'':13}  {'planned':>10}  {'happened':>10}"]
        for row in self.rows:
            off = "" if row.name == "generated" else f"  {100 * row.error:+.2f} %"
            most = " (at most)" if row.name == "generated" else ""
            lines.append(f"{row.name:13}  {row.planned:>10,}  {row.happened:>10,}{off}{most}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class Plan:
    """Work of a batch that starts with none of its prompts cached, and without evictions.

    Attributes:
        items: number of items.
        calls: forecast of each call, in a possible order of the calls.
        tree: the prompts as a prefix tree, by adapter.
        counted: how tokens were counted, "" if by the backend's tokenizer.
        kv_tokens: KV tokens of all prompts and generated texts, each of its greatest length.
        kv_capacity: KV tokens that the backend can hold, None if unknown.
        cost: dollars, None without prices.
        warning: known reasons why the forecast may be wrong, "" for none.
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
        """Tokens of all prompts; a prompt counts each time that it is sent."""
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
        """Fraction of the prompt tokens that are cached."""
        return self.cached_tokens / (self.prompt_tokens or 1)

    def compare(self, states: ProgramState | Sequence[ProgramState]) -> Comparison:
        """Compare the plan with the real run. ``states``: results of ``run`` or ``run_batch`` for
        the items of the plan."""
        several = [states] if isinstance(states, ProgramState) else list(states)
        if len(several) != self.items:
            raise ValueError(f"the plan is for {self.items} items, not {len(several)} states")
        return Comparison.of(self.calls, [state.usage for state in several])

    def __str__(self) -> str:
        return shown(self)

    __repr__ = __str__


def shown(plan: Plan) -> str:
    """Return the plan as text: the sums, then the tree."""
    return "\n".join(
        [*_sums(plan), "", f"{'requests':>8}  {'tokens':>7}", *tree_lines(plan.tree, 0)]
    )


def _sums(plan: Plan) -> Iterator[str]:
    items = "1 item" if plan.items == 1 else f"{plan.items:,} items"
    yield f"{items}, {len(plan.calls):,} calls, {plan.prompt_tokens:,} prompt tokens"
    yield f"  cached     {plan.cached_tokens:>11,}  ({100 * plan.hit_rate:.1f} %)"
    yield f"  to compute {plan.computed_tokens:>11,}"
    yield f"  to generate{plan.completion_tokens:>11,}  at most"
    if plan.kv_capacity is not None:
        yield f"  memory     {plan.kv_tokens:>11,}  of {plan.kv_capacity:,} tokens"
    if plan.cost is not None:
        yield f"  cost       {'$' + format(plan.cost, ',.4f'):>11}  at most"
    if plan.counted:
        yield f"  tokens are {plan.counted}"
    if plan.warning:
        yield f"  note: {plan.warning}"


def items_of(batch: Item | Sequence[Item]) -> Sequence[Item]:
    """Return the items of a batch, which may be one item."""
    if isinstance(batch, Mapping):
        return [batch]
    if isinstance(batch, str) or not isinstance(batch, Iterable):
        raise TypeError(f"batch is {batch!r:.60}; give a list of items, each a dict or a tuple")
    if isinstance(batch, tuple) and not all(isinstance(i, (Mapping, list, tuple)) for i in batch):
        return [batch]
    return list(batch)


def plan(
    program: Program,
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
    reader = PromptReader(tokens, unknowns, backend.chat_template, media_tokens)
    biller: Biller = NativeBiller(backend, reader) if backend.native else ServiceBiller(reader)
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
    cost = costs.cost(made.computed_tokens, made.cached_tokens, made.completion_tokens)
    return replace(made, cost=cost)


def _checked(lengths: Mapping[str, int], media_tokens: int | None) -> Mapping[str, int]:
    """Return ``lengths``. Raises ValueError for a length that is not an int of at least 0."""
    if not isinstance(lengths, Mapping):
        raise ValueError(f"lengths is {lengths!r:.60}; give a dict of tokens by name")
    of_media = [] if media_tokens is None else [("media_tokens", media_tokens)]
    for name, length in [*lengths.items(), *of_media]:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise ValueError(f"the length of {name} is {length!r}; give tokens, at least 0")
    return lengths


def _for_each(items: int, answers: Any) -> list[Answers]:
    """Return the answers of each item. Raises ValueError for a wrong number of answers."""
    given = list(answers) if isinstance(answers, (list, tuple)) else [answers] * items
    if len(given) != items:
        raise ValueError(f"there are answers for {len(given)} items and {items} items")
    return given


def _asked(
    program: Program,
    backend: Backend,
    items: Sequence[Mapping[str, Any]],
    defaults: GenParams,
    given: Sequence[Answers],
    lengths: Mapping[str, int],
    unknowns: Unknowns,
) -> list[RehearsedCall]:
    """Rehearse all items in order. Return their calls, after the call before all items."""
    found: list[RehearsedCall] = []
    batch = ProgramBatch(program, items, backend, defaults, limit="auto")
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


def _planned(asked: RehearsedCall, bill: Bill, found: list[int]) -> Planned:
    needs = bill.needs
    computed = sum(len(need.prompt) - hit for need, hit in zip(needs, found))
    if bill.several:
        prompt, told = len(needs[0].prompt) * bill.several, found[0] * bill.several
    else:
        prompt, told = sum(len(need.prompt) for need in needs), sum(found)
    title, location, _ = asked.request
    return Planned(
        asked.item,
        title,
        location,
        prompt,
        max(prompt - computed, 0),
        computed,
        bill.generated,
        told,
    )
