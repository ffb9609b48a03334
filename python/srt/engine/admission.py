"""Admission: the steps before the queue. A request is checked against the engine's limits, and
waits for its grammar, which is compiled in parallel to the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

from sglang.ir.constraint import Constraint
from sglang.srt.config import Config
from sglang.srt.core.context import Context
from sglang.srt.core.matcher import CompilerBusy, Matcher
from sglang.srt.core.messages import EVERY, POOLINGS, Advance, Embed, Failed, Fill, Generate, Goal
from sglang.srt.core.progress import Progress
from sglang.srt.core.request import Generation, Request, RequestSpec, Scheduling, score_from
from sglang.srt.core.segments import verify_score
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.engine.info import EngineInfo
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError
from sglang.srt.grammar.schema.whitespace import whitespace_pattern
from sglang.srt.grammar.stop_watch import StopWatch

# Most tokens that grammars read again for one continued generation, and in one step; some 10 ms.
MOST_REPLAYED = 4096
# Arguments: number of logits, end token ids.
MakeVocabulary: TypeAlias = Callable[[int, Sequence[int]], Vocabulary]


def verify(goal: Goal, context: Context, info: EngineInfo) -> None:
    """Raise ValueError, naming value, limit and fix, if the engine cannot serve the goal."""
    tokens = context.tokens
    if not tokens:
        raise ValueError("the context is empty; give it at least one token")
    if context.namespace.adapter < 0:
        raise ValueError("lora_path names an adapter that is not loaded; load it and try again")
    growth = 0
    if not isinstance(goal, Fill | Embed):
        info.verify_purpose()
    if isinstance(goal, Generate):
        goal.sampling.verify(info.vocab_size)
        info.verify_speculation(goal.sampling.speculation)
        growth = goal.sampling.max_new_tokens - goal.generated
        if growth < 1 and goal.generated < 1:
            raise ValueError("max_new_tokens is 0; use Fill or Score to generate nothing")
        _verify_since(goal, len(tokens))
    info.verify_media(context.media, context.segments)
    limit = min(info.context_length, info.capacity - info.capacity % info.page_size)
    if len(tokens) + growth > limit:
        raise ValueError(
            f"{len(tokens)} tokens and {growth} new ones exceed the limit of {limit} tokens; "
            "shorten the prompt or lower max_new_tokens"
        )
    if context.media and info.room(len(tokens), context.media) < growth:
        raise ValueError(
            f"the prompt's videos and {growth} new tokens reach past position "
            f"{info.context_length}, the last one; send fewer seconds or lower max_new_tokens"
        )
    verify_score(context.segments, score_from(goal))
    if isinstance(goal, Embed):
        _verify_pooling(goal, context)
    probe = () if isinstance(goal, Fill | Embed) else goal.probe
    verify_tokens(context, info)
    for token in probe:
        _verify_token(token, info)


def verify_tokens(context: Context, info: EngineInfo) -> None:
    """Check the tokens appended since the last check. Raises ValueError for an unknown id."""
    new = context.tokens[context.checked :]
    if new:
        _verify_token(min(new), info)
        _verify_token(max(new), info)
    context.checked = len(context.tokens)


def inherit(context: Context, info: EngineInfo) -> None:
    """Check a context's tokens before a fork, once for all children. Wrong tokens do not fail the
    fork; they fail later requests on the contexts."""
    with suppress(ValueError):
        verify_tokens(context, info)


def _verify_since(goal: Generate, length: int) -> None:
    if not -1 <= goal.since <= length:
        raise ValueError(f"since is {goal.since}; it must be an index into {length} tokens, or -1")
    replayed = length - goal.since
    if goal.generated and not 0 < goal.generated <= min(replayed, goal.sampling.max_new_tokens):
        raise ValueError(
            f"generated is {goal.generated}; it must be at most the {replayed} tokens from since="
            f"{goal.since} on, and of max_new_tokens, {goal.sampling.max_new_tokens}"
        )
    if goal.since >= 0 and goal.sampling.constraint is not None and replayed > MOST_REPLAYED:
        raise ValueError(
            f"a constraint would have to read {replayed} tokens again from since={goal.since} on, "
            f"of at most {MOST_REPLAYED}; begin the generation anew"
        )


def _verify_token(token: int, info: EngineInfo) -> None:
    if not 0 <= token < info.vocab_size:
        raise ValueError(f"token id {token} is outside the vocabulary of {info.vocab_size}")


def _verify_pooling(goal: Embed, context: Context) -> None:
    if goal.pooling not in (*POOLINGS, EVERY):
        raise ValueError(f"pooling is {goal.pooling!r}; use one of {', '.join(POOLINGS)}")
    if goal.pooling != "last" and context.segments:
        raise ValueError(
            f"pooling is {goal.pooling!r}, which texts side by side do not have; use 'last'"
        )


def new_request(
    verb: Advance, context: Context, seed: int, received: float, progress: Progress
) -> Request:
    """Make a request. Raises ValueError if its stop patterns are invalid or too large."""
    goal, generation = verb.goal, Generation(seed)
    if isinstance(goal, Generate) and (goal.sampling.stop or goal.sampling.stop_regex):
        generation.watch = StopWatch(goal.sampling.stop, goal.sampling.stop_regex)
    arrived = min(verb.arrived, received) if verb.arrived > 0 else received
    limits = verb.priority, verb.close, received, arrived, verb.report_prompt
    spec = RequestSpec(goal, len(context.tokens), *limits)
    facts = Scheduling(hint=verb.hint)
    return Request(verb.request, context, spec, generation, scheduling=facts, progress=progress)


def refusal(request: int, error: Exception) -> Failed:
    """Return the terminal event of a request that ``error`` keeps from being accepted."""
    if isinstance(error, CompilerBusy):
        return Failed(request, "overloaded", str(error))
    if isinstance(error, (ValueError, OverflowError)):
        return Failed(request, "invalid", str(error))
    if isinstance(error, KeyError):
        return Failed(request, "invalid", f"no context {error}")
    return Failed(request, "internal", f"{type(error).__name__}: {error}")


def seed_of(goal: Goal, seed: int, arrival: int) -> int:
    """Return the request's own seed, or a hash of the engine's seed and the order of arrival."""
    if isinstance(goal, Generate) and goal.sampling.seed is not None:
        return goal.sampling.seed
    return hash((seed, arrival)) & (2**63 - 1)


def constraint_of(goal: Goal) -> Constraint | None:
    """Return the goal's constraint on the generated text, or None."""
    return goal.sampling.constraint if isinstance(goal, Generate) else None


class Grammars(Protocol):
    """Source of grammars (``grammar.grammar_compiler.GrammarCompiler``)."""

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]: ...
    @property
    def counts(self) -> dict[str, int]: ...


class Compiling:
    """Requests that wait for their grammar, by id, each with the future of the grammar."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._pending: dict[int, tuple[Request, Future[CompiledGrammar]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def counts(self) -> dict[str, int]:
        """Counters of the grammar compiler, by name."""
        return self._grammars.counts if self._grammars is not None else {}

    def __contains__(self, request: int) -> bool:
        return request in self._pending

    def put(self, request: Request, constraint: Constraint) -> None:
        """Start to compile the request's grammar. Raises ValueError without a compiler."""
        if self._grammars is None:
            raise ValueError(f"{constraint.kind} cannot be enforced: this engine has no grammars")
        self._pending[request.id] = (request, self._grammars.submit(constraint))

    def drop(self, request: int) -> None:
        """Remove a request. Other requests that wait for the same grammar are not affected."""
        dropped = self._pending.pop(request, None)
        if dropped is not None:
            dropped[1].cancel()

    def ready(self) -> list[tuple[Request, Exception | None]]:
        """Remove and return requests whose grammar is done: (request, None) with its matcher set,
        or (request, exception). Their grammars read ``MOST_REPLAYED`` tokens again at most."""
        done = [pending for pending in self._pending.values() if pending[1].done()]
        found: list[tuple[Request, Exception | None]] = []
        left = MOST_REPLAYED
        for request, future in done:
            if request.spec.carried > left:
                continue
            left -= request.spec.carried
            del self._pending[request.id]
            try:
                request.generation.matcher = replayed(future.result().matcher(), request)
                found.append((request, None))
            except Exception as error:  # a GrammarError, or a bug of the grammar
                found.append((request, error))
        return found


def replayed(matcher: Matcher, request: Request) -> Matcher:
    """Advance a new matcher over the tokens of a continued generation (``Generate.since``), and
    return it. Raises GrammarError if the grammar does not allow them."""
    prompt = request.spec.prompt
    since = prompt - request.spec.carried
    for index, token in enumerate(request.context.tokens[since:prompt], since):
        if not matcher.advance(token):
            raise GrammarError(
                f"the constraint does not allow token {token}, number {index} of the context, "
                f"behind the tokens from since={since} on; begin the generation after it"
            )
    return matcher


def make_compiler(
    config: Config, info: EngineInfo, vocabulary: MakeVocabulary | None
) -> GrammarCompiler | None:
    """Return the grammar compiler of a configuration; None if ``vocabulary`` is None. Raises
    ValueError for a white space pattern that would make the text invalid JSON."""
    pattern = info.json_whitespace_pattern
    try:
        whitespace_pattern(pattern)
    except GrammarError as error:
        own = config.grammar.constrained_json_whitespace_pattern == "auto"
        where = "generation_config.json" if own else "--constrained-json-whitespace-pattern"
        raise ValueError(f"{where}: {error}") from None
    if vocabulary is None:
        return None
    settings = replace(config.grammar, constrained_json_whitespace_pattern=pattern)
    return GrammarCompiler(lambda: vocabulary(info.vocab_size, info.eos), settings)
