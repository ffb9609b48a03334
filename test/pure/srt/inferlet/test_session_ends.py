"""Sessions over an engine that does not answer: what a program gets when its space ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.silent_link import SilentLink, opened, settled
from sglang.srt.core.space_messages import ForwardTokens, SpaceEnded, SpaceFailed
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.driver import CallAnswer
from sglang.srt.inferlet.inferlet_session import InferletSession

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


Failed = tuple[InferletSession, list[CallAnswer]]


async def with_a_failed_forward(ended: bool, *calls: c.ProgramCall) -> Failed:
    """A session whose ``calls``, a forward among them, have left and then failed, and the
    answers."""
    controller, session = opened()
    link, answers, verbs = controller.served.link, list[CallAnswer](), list[Any]()
    assert isinstance(link, SilentLink)
    link.send = lambda *sent: verbs.extend(sent)  # type: ignore[method-assign]
    session.deliver = answers.append
    session.handle(c.CreateQueueCall(id=0, queue=0))
    session.handle(c.AllocKvpageCall(id=1, queue=0, pages=[0]))
    session.handle(c.AllocEmbCall(id=2, queue=0, embs=[0, 1]))
    session.handle(c.EmbedTxtCall(id=3, queue=0, tokens=[1], positions=[0], embs=[0]))
    await settled()
    for call in calls:
        session.handle(call)
    await settled()
    [forward] = [verb for verb in verbs if isinstance(verb, ForwardTokens)]
    [(space, listener)] = link.listeners.items()
    if ended:
        listener(SpaceEnded(space, "overloaded", "older programs needed its pages"))
    else:
        listener(SpaceFailed(space, forward.request, "internal", "the pass failed"))
    await settled()
    return session, answers


@pytest.mark.parametrize("ended", [False, True])
def test_a_failed_forward_answers_its_token_and_distribution(ended: bool) -> None:
    forward = c.ForwardWithSamplingCall(id=4, queue=0, **ROW, oemb=[1])
    calls = forward, c.GetNextDistCall(id=5, queue=0, emb=1, k=3)
    _, answers = asyncio.run(with_a_failed_forward(ended, *calls))
    assert sorted(answer.id for answer in answers) == [4, 5]
    assert all(answer.error for answer in answers)


@pytest.mark.parametrize("ended", [False, True])
def test_a_distribution_that_failed_is_refused_later(ended: bool) -> None:
    async def main() -> None:
        forward = c.ForwardCall(id=4, queue=0, iemb=[0], okv=[0], oemb=[1])
        session, answers = await with_a_failed_forward(ended, forward)
        session.handle(c.SynchronizeCall(id=5, queue=0))  # takes the forward's own error
        session.handle(c.GetNextDistCall(id=6, queue=0, emb=1, k=3))
        assert [answer.id for answer in answers] == [5, 6]
        found = answers[1].error
        assert found is not None
        assert found.code == ("overloaded" if ended else "internal")

    asyncio.run(main())
