"""Spaces on a real model: what programs compute by hand is what requests get."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config, ScheduleConfig
from sglang.srt.core.ints import from_bytes, ints
from sglang.srt.core.messages import Advance, Close, Generate, Open, Tokens
from sglang.srt.core.space_messages import (
    WHOLE,
    AllocPages,
    CloseSpace,
    CopyTokens,
    ForwardDone,
    ForwardTokens,
    OpenSpace,
    PrefixPages,
    SpaceReply,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline, Threaded, load_worker

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [400, 900, 1200, 333, 2000, 815, 640, 501]


def data(values: Any) -> bytes:
    return ints(values).tobytes()


class Hand:
    """An engine, and the events of one space."""

    def __init__(self, kernels: str, executor: Any = Inline) -> None:
        config = Config.of(cpu_kernels=kernels, dtype="float32", max_total_tokens=1024)
        worker, info = load_worker(config)
        self.engine = EngineCore(executor(worker), info, ScheduleConfig(), [b"x"] * info.vocab_size)
        self.events: list[Any] = []
        self.numbers = itertools.count(1)

    def send(self, *verbs: Any) -> None:
        self.events += self.engine.handle(list(verbs))

    def run(self) -> list[Any]:
        while self.engine.busy:
            self.events += self.engine.step()
        self.engine.store.check()
        events, self.events = self.events, []
        return events

    def generated(self, count: int) -> list[int]:
        """The greedy text of an ordinary request."""
        number = next(self.numbers)
        params = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
        self.send(Open(number, data(PROMPT)), Advance(number, number, Generate(params)))
        found = [t for e in self.run() if isinstance(e, Tokens) for t in e.tokens]
        self.send(Close(number))
        return found


@pytest.fixture(scope="module", params=["native", "torch"])
def hand(request: Any) -> Any:
    made = Hand(request.param, Threaded)
    yield made
    made.engine.close()


@pytest.fixture
def space(hand: Hand) -> Any:
    number = next(hand.numbers)
    hand.send(OpenSpace(number))
    yield number
    hand.send(CloseSpace(number))
    hand.run()
    assert hand.engine.store.holder is not None
    assert hand.engine.store.holder.held == 0


def done(events: list[Any]) -> dict[int, ForwardDone]:
    assert all(isinstance(event, ForwardDone | SpaceReply) for event in events), events
    return {event.request: event for event in events if isinstance(event, ForwardDone)}


def test_a_loop_by_hand_gives_the_text_of_a_request(hand: Hand, space: int) -> None:
    """Every token from a distribution that the program reads."""
    wanted = hand.generated(16)
    count = len(PROMPT)
    hand.send(AllocPages(space, data(range(count + 16))))
    hand.send(ForwardTokens(space, 0, data(PROMPT), written=data(range(count)), top=8))
    text = []
    for i in range(16):
        (answer,) = done(hand.run()).values()
        text.append(from_bytes(answer.ids)[0])
        verb = ForwardTokens(
            space, i + 1, data(text[-1:]), visible=data(range(count + i)),
            written=data([count + i]), top=8,
        )  # fmt: skip
        hand.send(verb)
    hand.run()
    assert text == wanted


def test_futures_give_the_same_text_in_as_many_passes(hand: Hand, space: int) -> None:
    wanted, passes = hand.generated(16), hand.engine.stats.passes
    count = len(PROMPT)
    hand.send(AllocPages(space, data(range(count + 16))))
    first = ForwardTokens(space, 0, data(PROMPT), written=data(range(count)), sample=GREEDY)
    hand.send(first)
    for i in range(15):
        hand.send(
            ForwardTokens(
                space, i + 1, data([0]), visible=data(range(count + i)), written=data([count + i]),
                sample=GREEDY, follows=i,
            )
        )  # fmt: skip
    answers = done(hand.run())
    assert [answers[i].token for i in range(16)] == wanted
    assert hand.engine.stats.passes - passes == 16


def test_a_prefix_and_a_copy_hold_the_same_kv(hand: Hand, space: int) -> None:
    wanted = hand.generated(1)
    hand.send(PrefixPages(space, 0, data(PROMPT[:-1]), 100), AllocPages(space, data(range(8))))
    (reply,) = hand.run()
    assert reply.count == len(PROMPT) - 1
    sources, copies = list(range(100, 107)), list(range(7))
    hand.send(CopyTokens(space, data(sources), data(copies)))
    for request, visible in ((1, sources), (2, copies), (3, copies[::-1])):
        verb = ForwardTokens(
            space, request, data(PROMPT[-1:]), data([7]), data(visible), sample=GREEDY, top=WHOLE
        )
        hand.send(verb)
    answers = done(hand.run())
    read = [np.frombuffer(answers[i].logprobs, np.float32) for i in (1, 2, 3)]
    assert (read[0] == read[1]).all(), "a copy is bit for bit"
    assert np.abs(read[0] - read[2]).max() < 1e-3, "no order of slots matters"
    assert [answers[i].token for i in (1, 2, 3)] == wanted * 3
