"""Sessions over an engine that does not answer: what a program gets when its space ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.silent_link import SilentLink, opened, settled
from sglang.srt.core.space_messages import SpaceEnded
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.driver import CallAnswer

ROW: dict[str, Any] = {"params": {"temperature": 0}, "iemb": [0], "okv": [0]}
PENDING = {
    "answered by the engine": c.ListExportsCall(id=9),
    "a forward": c.ForwardWithSamplingCall(id=9, queue=0, **ROW),
    "memory alone": c.AllocKvpageCall(id=8, queue=0, pages=[5]),
}


@pytest.mark.parametrize("name", PENDING)
def test_commands_pending_when_the_space_ends_are_refused(name: str) -> None:
    async def main() -> None:
        controller, session = opened()
        answers: list[CallAnswer] = []
        session.deliver = answers.append
        session.handle(c.CreateQueueCall(id=0, queue=0))
        session.handle(c.AllocKvpageCall(id=1, queue=0, pages=[0]))
        session.handle(c.AllocEmbCall(id=2, queue=0, embs=[0]))
        session.handle(c.EmbedTxtCall(id=3, queue=0, tokens=[1], positions=[0], embs=[0]))
        await settled()
        session.handle(c.ListExportsCall(id=4))  # in flight from now on: eager waits for it
        await settled()
        session.handle(PENDING[name])
        await settled()
        link = controller.served.link
        assert isinstance(link, SilentLink)
        [(space, listener)] = link.listeners.items()
        listener(SpaceEnded(space, "overloaded", "older programs needed its pages"))
        await settled()
        session.handle(c.SynchronizeCall(id=10, queue=0))
        ids = [answer.id for answer in answers]
        assert ids == ([4, 10] if name == "memory alone" else [4, 9, 10])
        assert all(answer.error.code == "overloaded" for answer in answers[:-1] if answer.error)
        assert all(answer.error for answer in answers[:-1])
        assert controller.dispatcher.delay(9.0, 0) is None
        assert controller.dispatcher._flying == 0

    asyncio.run(main())
