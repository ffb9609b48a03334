"""RowScoring: scores rows of tokens after one prompt, by one of two methods.

If the engine can, rows are scored as trees (``tree_scores``): common beginnings are computed once,
and many rows are one forward. Otherwise, and if more than log-probabilities is wanted, each row is
a request in a context of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Append, Done, Event, ForkContext, Goal, Open, Score, Verb
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.engine_succession import EngineContext, EngineSuccession
from sglang.srt.requests.completion.tree_scores import NoTree, TreeScores, verify_trees
from sglang.srt.requests.completion.whole_choices import ScoredChoice, score

Advancing = Callable[[EngineContext, Goal, Sequence[Verb], bool], AsyncGenerator[list[Event], None]]


class RowScoring:
    """The rows of one request.

    Args:
        advance: runs a goal on a context and yields its events.
        again: computes the prompt on the engine that replaces a lost one; returns the context.

    Attributes:
        computed: number of tokens of rows that were computed.
    """

    def __init__(
        self,
        engine: EngineSuccession,
        request: CompletionRequest,
        advance: Advancing,
        again: Callable[[], Awaitable[EngineContext]],
    ) -> None:
        self._engine, self._request = engine, request
        self._advance, self._again = advance, again
        self._tree: TreeScores | None = None
        self.computed = 0

    async def scored(
        self, context: EngineContext, rows: Sequence[ScoredChoice], behind: int
    ) -> list[ScoredChoice]:
        """Return the rows with the log-probabilities of their tokens. The rows follow the first
        ``behind`` tokens of the prompt, whose context is ``context``. An abort leaves some out.
        Raises RequestError and EngineLost."""
        while True:
            found = [ScoredChoice(each.text, each.tokens) for each in rows]
            try:
                if not await self._as_trees(context, found, behind):
                    self.computed = sum(len(each.tokens) for each in found)
                    some = [each for each in found if each.tokens]
                    await score(some, partial(self._in_context, context, behind))
                return found
            except EngineLost as lost:
                await self._engine.replace(context.client, lost)
                context = await self._again()

    async def _as_trees(
        self, context: EngineContext, rows: list[ScoredChoice], behind: int
    ) -> bool:
        """Score the rows as trees if the engine can; return whether it did. Raises EngineLost."""
        request, client = self._request, context.client
        plain = request.logprobs is None and not (request.media or request.segments)
        if not plain or len(rows) < 2:
            return False
        tree = TreeScores(
            client, request.prompt[:behind], request.namespace, request.adapter, request.priority,
            request.owner,
        )  # fmt: skip
        self._tree = tree
        try:
            verify_trees(client.info)
            found = await tree.score([row.tokens for row in rows])
        except NoTree:
            return False
        finally:
            tree.close()
        self.computed = tree.computed
        for row, values in zip(rows, found):
            row.logprobs = [value or 0.0 for value in values]
            row.stats = RequestStats(forward_passes=1)
        return True

    async def _in_context(
        self, context: EngineContext, behind: int, row: ScoredChoice
    ) -> AsyncGenerator[Event, None]:
        """Score a row in a context of its own; yield the events."""
        logprobs, tokens = self._request.logprobs or Logprobs(), ints(row.tokens)
        child = self._engine.new_context()
        before: list[Verb] = [
            ForkContext(context.number, child.number, behind),
            Append(child.number, tokens.tobytes()),
        ]
        if not behind:
            before = [_alone(self._request, child.number, tokens)]
        goal = Score(behind, logprobs.top, logprobs.probe)
        async with aclosing(self._advance(child, goal, before, True)) as batches:
            async for events in batches:
                for event in events:
                    if isinstance(event, Done):
                        row.stats = event.stats
                    yield event

    def abort(self) -> None:
        """End the scoring as trees. EngineSuccession closes the contexts."""
        if self._tree is not None:
            self._tree.abort()


def _alone(request: CompletionRequest, number: int, tokens: Ints) -> Open:
    return Open(number, tokens.tobytes(), request.namespace, adapter=request.adapter)
