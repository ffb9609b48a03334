"""Calls without an answer: a program may have so many at a time."""

from __future__ import annotations

import asyncio

from helpers.silent_link import opened
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.driver import CallAnswer


def test_a_call_beyond_those_that_may_wait_is_refused() -> None:
    async def main() -> None:
        _, session = opened(waiting=2)
        answers: list[CallAnswer] = []
        session.deliver = answers.append
        for number in range(9):
            session.handle(c.NowCall(id=number))  # answered at once
            session.handle(c.LogCall(id=100, message="needs no answer"))
            session.handle(BadCall(number, "cannot be read"))
            session.handle(c.DetokenizeCall(id=number, tokens=[10**6]))
        assert len(answers) == 27
        answers.clear()
        for number in range(3):
            session.handle(c.ReceiveCall(id=number))
        [refused] = answers
        assert refused.id == 2
        assert refused.error is not None
        assert "2 calls wait for their answer already" in refused.error.message
        session.mail_in("a")
        session.handle(c.ReceiveCall(id=3))
        assert [answer.id for answer in answers] == [2, 0]
        session.mail_in("b")
        session.mail_in("c")
        assert [answer.id for answer in answers] == [2, 0, 1, 3]
        assert session._waiting == 0

    asyncio.run(main())
