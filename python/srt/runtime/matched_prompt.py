"""Prompts that begin with the text of a parked context: they take over the context's tokens.

Generated tokens may differ from the tokenization of their text, and the tokenizer may merge the end
of one text with the beginning of the next. With the context's own tokens, all its KV is reused.
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
    """The token ids of a prompt that begins with the tokens of a parked context."""

    tokens: Ints
    resumed: Resumption


def framed_text(tokenizer: Tokenizer, text: str) -> str:
    """Return the text with the text of the tokenizer's leading tokens before it, once."""
    before = tokenizer.decode(tokenizer.before)
    return text if text.startswith(before) else before + text


async def matched(
    runtime: EngineRuntime, scope: ParkingScope, text: str, special: bool = False
) -> MatchedPrompt | None:
    """Return the prompt of a text that begins with the text of a parked context. Return None if no
    context matches, or if its tokens and the rest exceed the context length. ``special``: the
    tokenizer's leading tokens belong before the text, unless the text has them. Raises
    RequestError."""
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
