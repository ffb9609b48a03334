"""GenerateCall: the requests of one body of ``/generate``, and how they are run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import msgspec
from sglang.srt.http.service import Service
from sglang.srt.program.ask import Ask
from sglang.srt.program.completion import EngineLost
from sglang.srt.program.output import Output
from sglang.srt.program.request_error import RequestError
from sglang.srt.runtime.sessions import SessionParams, SessionTurn


class GenerateCall(msgspec.Struct):
    """The requests of one body and how their answers are shown."""

    asks: list[Ask]
    single: bool  # one prompt, not in a list, one completion
    with_text: bool
    received: float | None  # time.monotonic(), where spans are wanted
    states: Sequence[bool]  # of each ask, whether hidden states are wanted
    turn: SessionTurn | None = None  # of a session

    def in_session(self, service: Service, params: SessionParams) -> GenerateCall:
        """The same with the prompt of its session. Nothing may be awaited until it is run: the
        session has it by then. Raises RequestError."""
        [ask, *others] = self.asks
        more = ask.segments or ask.media or ask.score_choices or self.states[0]
        if others or not self.single or more:
            raise RequestError(
                "A request of a session is one prompt of text or ids with n = 1, without media, "
                "parts, choices_scoring and return_hidden_states; send others without "
                "session_params.",
                "session_params",
            )
        turn = service.sessions.begin(params, ask.rid, ask.prompt)
        return msgspec.structs.replace(self, asks=[replace(ask, prompt=turn.prompt)], turn=turn)

    def run(self, service: Service) -> AsyncGenerator[tuple[int, Output], None]:
        """Outputs as ``Service.run`` has them."""
        if self.turn is None:
            return service.run(self.asks)
        return service.sessions.follow(self.turn, partial(service.run, self.asks))

    async def finish(self, service: Service) -> list[list[Output]]:
        """The finished outputs of each ask. Raises EngineLost where none came."""
        if self.turn is None:
            return await service.finish(self.asks)
        last = None
        async with aclosing(self.run(service)) as items:  # tokens may be replaced until the end
            async for _, output in items:
                last = output
        if last is None:
            raise EngineLost("the engine ended a request without an answer")
        return [[last]]
