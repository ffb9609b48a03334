"""Parking at calls: parks the context of a reply that ends in tool calls until their results come.

The client need not request this. Its next prompt continues the context if the prompt begins with
the same text (``matched_prompt``). If the client gives ``kv_hints``, the context is parked as they
request.
"""

from __future__ import annotations

from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.held_context import Claim
from sglang.srt.requests.completion.output import HintAnswer, Output
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.runtime.conversations.reply_reader import ReplyReader
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.parking.kv_hints import HintedTurn
from sglang.srt.runtime.parking.parked_store import DEADLINE, ParkedContext, ParkFacts
from sglang.srt.runtime.parking.text_index import ContextText, bytes_of


def park_at_call(
    runtime: EngineRuntime, call: ChatCall, output: Output, reader: ReplyReader, caller: Caller
) -> ParkedContext | None:
    """Park the context of a finished reply that ends in tool calls, and return it. Return None if
    nothing is parked, also for prompts with images and for several completions."""
    request, finish = call.request, output.finish
    if not reader.called or finish is None or finish.reason != "stop":
        return None
    if request.media or request.sampling.n != 1:
        return None
    store, scope = runtime.parked, runtime.scope(caller, request.namespace, request.adapter)
    arrived = output.started
    if request.resumed is not None:
        arrived = request.resumed.arrived
        store.supersede(request.resumed, scope.tenant)
    text = _prompt_of(call).grown(bytes_of(runtime.tokenizer.token_bytes, output.tokens))
    claim = Claim(reader.tool, scope.tenant, 0.0, DEADLINE)
    facts = ParkFacts(request.rid, arrived, claim)
    return store.park(scope, request.prompt + ints(output.tokens), text, facts)


def hinted_or_parked(
    runtime: EngineRuntime, call: ChatCall, output: Output, reader: ReplyReader, caller: Caller
) -> dict[str, list[HintAnswer]]:
    """Keep the context of a finished reply as its hints request. If no hint does, park it if it
    ends in tool calls. Return the reply's field ``kv_hints`` with the answers to the hints, {} if
    there are none."""
    request, hints, answers = call.request, call.hints, list[HintAnswer]()
    if hints is not None:
        refusal = "contexts with images or videos are not kept" if request.media else ""
        scope = runtime.scope(caller, request.namespace, request.adapter)
        table, text = runtime.tokenizer.token_bytes, _prompt_of(call)
        turn = HintedTurn(runtime.parked, table, request, scope, hints, text, refusal)
        answers = turn.answers(output)
    if all(answer.outcome == "rejected" for answer in answers):
        park_at_call(runtime, call, output, reader, caller)
    return {"kv_hints": answers} if answers else {}


def _prompt_of(call: ChatCall) -> ContextText:
    return ContextText(call.source.encode("utf-8", "surrogatepass"))
