"""Asked: what one body of ``/generate`` asks for, and how it is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import msgspec

from srt.program.output import Output
from srt.program.request import Ask, RequestError
from srt.server.service import Service
from srt.server.text.sessions import SessionParams, Turn


class Asked(msgspec.Struct):
    """The asks of one body and how to show what comes back."""

    asks: list[Ask]
    single: bool  # one prompt, not in a list, one completion
    with_text: bool
    received: float | None  # time.monotonic(), where spans are wanted
    states: Sequence[bool]  # of each ask, whether hidden states are wanted
    turn: Turn | None = None  # of a session

    def in_session(self, service: Service, params: SessionParams) -> Asked:
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
        """The finished outputs of each ask."""
        if self.turn is None:
            return await service.finish(self.asks)
        async with aclosing(self.run(service)) as items:  # what it writes may be replaced
            async for _, output in items:
                last = output
        return [[last]]
