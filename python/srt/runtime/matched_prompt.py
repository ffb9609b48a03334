"""Prompts that begin with the text of a parked context: they go on with its own tokens.

What a model has generated is not always what its text is tokenized to, and a text after another
may be joined with it. With the context's own tokens nothing of it is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.core.ints import Ints
from sglang.srt.requests.completion.held_context import Resumption
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.parking.parked_store import ParkingScope
from sglang.srt.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MatchedPrompt:
    """A prompt that goes on with a parked context, whose tokens it begins with."""

    tokens: Ints
    resumed: Resumption


def framed_text(tokenizer: Tokenizer, text: str) -> str:
    """The text with that of the tokens that the tokenizer puts before it, once."""
    before = tokenizer.decode(tokenizer.before)
    return text if text.startswith(before) else before + text


async def matched(
    runtime: EngineRuntime, scope: ParkingScope, text: str, special: bool = False
) -> MatchedPrompt | None:
    """The prompt of a text, by the parked context whose text it begins with; None where there is
    none, or where its own tokens and the rest are too many. ``special``: the tokenizer's own tokens
    belong before the text, unless it begins with them. Raises RequestError."""
    store, tokenizer = runtime.parked, runtime.tokenizer
    if store.empty or (special and tokenizer.after):
        return None
    found = store.match(scope, framed_text(tokenizer, text) if special else text)
    if found is None:
        return None
    context, rest = found
    info = runtime.info
    room = min(info.context_length, info.capacity) - len(context.tokens)
    if len(rest) > room * tokenizer.longest:
        return None
    behind = await runtime.completion.encoder.encode_behind(rest)
    if len(behind) > room:
        return None
    held = None if context.named else context.held
    length, arrived = len(context.tokens), context.facts.arrived
    resumed = Resumption(context.number, length, arrived, held=held)
    return MatchedPrompt(context.tokens + behind, resumed)
