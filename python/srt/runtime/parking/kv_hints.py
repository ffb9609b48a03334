"""``kv_hints``: wishes of an orchestrator for the KV of a request's context when the request ends.

The envelope is the one that vLLM (pull request 53423) and Dynamo (13134) have merged: a version, a
name of the message, and actions with a type, a version and a payload. The types are those of
SGLang's issue 27574. Each action gets an outcome in the reply; no action changes generated text.

    kv.retain   park the context, without a handle, for ``ttl_seconds``
    kv.pin      the same; its outcome is "clipped", because a claim locks no memory
    kv.demote   the same, with no use expected before its end, so its KV is evicted first
    kv.share, kv.prefetch and others    rejected
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import ints
from sglang.srt.requests.common_fields import NAME, verify_fields
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.held_context import Claim
from sglang.srt.requests.completion.output import HintAnswer, Output
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.parking.parked_store import (
    DEADLINE,
    MOST_DEADLINE,
    ParkedStore,
    ParkFacts,
    ParkingScope,
)
from sglang.srt.runtime.parking.resumable import PARKING_ENDS, Outputs, Run
from sglang.srt.runtime.parking.text_index import ContextText, bytes_of

PROTOCOL = "0.1"
MAX_ACTIONS = 16
KEEPING = ("kv.retain", "kv.pin", "kv.demote")
_ABSENT = {
    "kv.share": "one engine has no other worker to share its cache with",
    "kv.prefetch": "a context is loaded when its request comes; send the request",
}


class KvHintAction(msgspec.Struct, kw_only=True):
    """One action. Only ``ttl_seconds`` and ``expected_seconds`` of ``payload`` are read."""

    action_id: Annotated[str, NAME, "Name of the action in its message."]
    action_type: Annotated[str, NAME, "Requested action, such as kv.retain."]
    action_version: Annotated[str, NAME, "Version of the action, such as 1.0."]
    payload: dict[str, Any]


class KvHints(msgspec.Struct, kw_only=True):
    """``kv_hints`` of a request."""

    protocol_version: str
    message_id: Annotated[str, NAME, "Name of the message, repeated in the answer."]
    actions: Annotated[list[KvHintAction], Bounds(entries=MAX_ACTIONS), "The requested actions."]

    def verify(self) -> None:
        """Raise RequestError if the envelope, or the payload of a supported action, is invalid."""
        if self.protocol_version != PROTOCOL:
            raise RequestError(
                f"kv_hints.protocol_version is {shown(self.protocol_version)}; give {PROTOCOL!r}.",
                "kv_hints.protocol_version",
            )
        verify_fields(self, {name: f"kv_hints.{name}" for name in self.__struct_fields__})
        for index, action in enumerate(self.actions):
            where = f"kv_hints.actions[{index}]"
            verify_fields(action, {name: f"{where}.{name}" for name in action.__struct_fields__})
            if action.action_type in KEEPING:
                for name in ("ttl_seconds", "expected_seconds"):
                    _verify_seconds(action.payload.get(name), f"{where}.payload.{name}")


KvHintsField = Annotated[
    KvHints,
    Bounds(words="an object"),
    "Hints for the KV of the context at its end; the answer has an outcome for each.",
]


def _verify_seconds(value: object, where: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise RequestError(f"{where} is {value!r:.60}; give a number of seconds from 0 on.", where)


class HintedTurn:
    """One request with hints. Its context is parked when it ends, if a hint requests so.

    Args:
        table: the bytes of every token id.
        text: the prompt's text.
        refusal: reason for which this request's context cannot be kept; "" if it can.
    """

    def __init__(
        self, store: ParkedStore, table: list[bytes], request: CompletionRequest,
        scope: ParkingScope, hints: KvHints, text: ContextText, refusal: str = "",
    ) -> None:  # fmt: skip
        self._store, self._table, self._hints = store, table, hints
        self._request, self._scope, self._text = request, scope, text
        self._refusal = refusal

    async def follow(self, run: Run) -> Outputs:
        """Yield the items of ``run()``; the last one has the answers to the hints. Raises the
        errors of ``run``."""
        ended = False
        async with aclosing(run()) as items:
            async for item in items:
                output = item[1]
                if not ended and output.finish is not None:
                    ended = True
                    output.hints = self.answers(output)
                yield item

    def answers(self, output: Output) -> list[HintAnswer]:
        """Do the actions for a finished output, and return an answer to each."""
        return list(self._answers(output))

    def _answers(self, output: Output) -> Iterator[HintAnswer]:
        done = ""
        for action in self._hints.actions:
            name, kind = action.action_id, action.action_type
            if kind not in KEEPING:
                reason = _ABSENT.get(kind, f"the actions are {', '.join(KEEPING)}")
                yield HintAnswer(name, "rejected", reason)
            elif done:
                yield HintAnswer(name, "rejected", f"{done} of this message was done already")
            else:
                answer = self._keep(action, output)
                done = kind if answer.outcome != "rejected" else ""
                yield answer

    def _keep(self, action: KvHintAction, output: Output) -> HintAnswer:
        """Park the context without a handle, and return the answer to the action."""
        name, payload = action.action_id, action.payload
        assert output.finish is not None
        if self._refusal:
            return HintAnswer(name, "rejected", self._refusal)
        if output.finish.reason not in PARKING_ENDS:
            return HintAnswer(name, "rejected", f"the request ended by {output.finish.reason}")
        wanted = payload.get("ttl_seconds")
        wanted = DEADLINE if wanted is None else wanted
        seconds = min(wanted, MOST_DEADLINE)
        expected = min(payload.get("expected_seconds") or 0.0, MOST_DEADLINE)
        if action.action_type == "kv.demote":
            expected = MOST_DEADLINE
        request, owner = self._request, self._scope.tenant
        if request.resumed is not None:
            self._store.supersede(request.resumed, owner)
        arrived = output.started if request.resumed is None else request.resumed.arrived
        claim = Claim(action.action_type, owner, float(expected), float(seconds))
        context = self._store.park(
            self._scope, request.prompt + ints(output.tokens),
            self._text.grown(bytes_of(self._table, output.tokens)),
            ParkFacts(request.rid, arrived, claim),
        )  # fmt: skip
        if context is None:
            return HintAnswer(
                name, "rejected", "no room is left (--max-parked-per-key, --max-parked-bytes)"
            )
        if context.held is None:
            return HintAnswer(name, "deferred", "the engine is lost: the tokens are kept, no KV")
        if seconds < wanted:
            return HintAnswer(name, "clipped", f"kept for {seconds:g} s, the most")
        if action.action_type == "kv.pin":
            return HintAnswer(
                name, "clipped", "kept as a claim, which yields where memory is short"
            )
        return HintAnswer(name, "accepted")
