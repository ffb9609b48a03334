"""Load: offers a workload to a target and gathers the results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter

from sglang.srt.commands.bench.result import BenchCall, Result, TurnPart
from sglang.srt.commands.bench.target import Target
from sglang.srt.commands.bench.workload import Conversation, Turn, words


@dataclass(frozen=True)
class BenchRun:
    """``cpu_seconds`` are this process's, children not counted."""

    results: list[Result]
    cpu_seconds: float


async def offer(
    target: Target,
    conversations: Sequence[Conversation],
    offsets: Sequence[float],
    *,
    max_concurrency: int = 0,
    timeout: float = 600.0,
) -> BenchRun:
    """Begin conversation ``i`` at ``offsets[i]`` seconds; its turns follow one another.

    Args:
        max_concurrency: requests in flight at once, 0 for any number. A request held back by it is
            due when it may go.
        timeout: seconds a request may take.
    """
    began = time.process_time()
    if target.batched:
        results = await _all_at_once(target, conversations)
    else:
        gate = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
        start = perf_counter()
        talks = [
            _converse(target, conversation, start + offset, gate, timeout)
            for conversation, offset in zip(conversations, offsets, strict=True)
        ]
        results = [result for talk in await asyncio.gather(*talks) for result in talk]
    return BenchRun(results, time.process_time() - began)


async def _converse(
    target: Target,
    conversation: Conversation,
    due: float,
    gate: asyncio.Semaphore | nullcontext[None],
    timeout: float,
) -> list[Result]:
    """A failed turn ends the conversation: what would follow is not what was to be measured."""
    await asyncio.sleep(max(0.0, due - perf_counter()))
    parts: list[TurnPart] = []
    results = []
    for number, turn in enumerate(conversation.turns):
        parts.append(_question(turn))
        call = BenchCall(conversation.number, number, list(parts), turn.output)
        result = Result(call.conversation, call.turn, call.output)
        held = perf_counter()
        async with gate:
            now = perf_counter()
            # Held back by the gate, or by the turn before: due only now.
            result.due = due if number == 0 and now - held < 1e-3 else now
            await _ask(target, call, result, timeout)
        results.append(result)
        if result.error:
            break
        parts.append(TurnPart("assistant", result.ids, result.text))
    return results


async def _ask(target: Target, call: BenchCall, result: Result, timeout: float) -> None:
    result.sent = perf_counter()
    try:
        await asyncio.wait_for(target.answer(call, result), timeout)
    except asyncio.TimeoutError:
        result.error = f"no answer within {timeout:g} s"
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}"
    result.end = perf_counter()


async def _all_at_once(target: Target, conversations: Sequence[Conversation]) -> list[Result]:
    if any(len(conversation.turns) > 1 for conversation in conversations):
        raise ValueError(f"{target.name} answers batches only; it takes no multi-turn workload")
    calls = [
        BenchCall(c.number, 0, [_question(c.turns[0])], c.turns[0].output) for c in conversations
    ]
    results = [Result(call.conversation, 0, call.output) for call in calls]
    now = perf_counter()
    for result in results:
        result.due = result.sent = now
    await asyncio.to_thread(target.answer_all, calls, results)
    return results


def _question(turn: Turn) -> TurnPart:
    return TurnPart("user", turn.tokens, words(turn.tokens))
