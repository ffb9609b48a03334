"""Calls without an answer: a program may have so many at a time."""

from __future__ import annotations

import asyncio

from helpers.silent_link import opened
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.driver import CallAnswer, Fault


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


def test_a_refused_call_gets_an_earlier_error_of_the_run() -> None:
    async def main() -> list[CallAnswer]:
        _, session = opened()
        answers: list[CallAnswer] = []
        session.deliver = answers.append
        session.handle(c.CreateQueueCall(id=1, queue=5))
        for call in (2, 3):
            session.refuse(-1, -1, Fault("invalid", "no pages are left"))
            session.refuse(call, 5, Fault("invalid", "handle 7 is not in use"))
            session.refuse(call + 10, 5, Fault("invalid", "handle 8 is not in use"))
        return answers

    found = [(one.id, one.error.message) for one in asyncio.run(main()) if one.error]
    earlier, own = "no pages are left", "handle 8 is not in use"
    assert found == [(2, earlier), (12, own), (3, earlier), (13, own)]
