"""Turns: one of many calls or long answers neither holds the event loop nor fills the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from helpers.silent_link import opened, settled
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet import controller as controller_module
from sglang.srt.inferlet import inferlet_run
from sglang.srt.inferlet.driver import CallAnswer, Fault, ProgramEnded, write_text
from sglang.srt.inferlet.inferlet_run import InferletRun


class Turns:
    """A driver that takes given turns, then exits.

    Attributes:
        answers: of each turn.
    """

    def __init__(self, *turns: Sequence[Any]) -> None:
        self._turns = [*turns, [c.ExitCall(id=99)]]
        self.answers: list[list[CallAnswer]] = []

    def turn(self, answers: list[CallAnswer]) -> Sequence[Any]:
        self.answers.append(answers)
        return self._turns.pop(0)

    def close(self) -> None: ...


def test_other_work_is_done_between_slices_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inferlet_run, "SLICE", 0)

    async def main() -> None:
        controller, session = opened()
        order: list[str] = []
        driver = Turns(
            [c.LogCall(id=1, message="a"), c.NowCall(id=2), c.LogCall(id=3, message="b")]
        )

        def tick() -> None:
            order.append("tick")
            if len(driver.answers) < 2:
                asyncio.get_running_loop().call_soon(tick)

        session.parts.follower.log = order.append
        InferletRun(controller, session, driver).start()
        tick()
        await settled()
        a, b = order.index("a"), order.index("b")
        assert order[a : b + 1].count("tick") == 2
        assert [[one.id for one in answers] for answers in driver.answers] == [[], [2]]
        assert session.parts.outcome.ended
        assert controller.runnable == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_a_program_raises_ends_it_alone(kind: type[BaseException]) -> None:
    class Exiting(Turns):
        def turn(self, answers: list[CallAnswer]) -> Sequence[Any]:
            raise kind("on purpose")

    async def main() -> None:
        controller, session = opened()
        ends: list[str] = []
        session.parts.follower.end = ends.append
        InferletRun(controller, session, Exiting()).start()
        await settled()
        assert session.parts.outcome.ended
        assert f"{kind.__name__}: on purpose" in ends[0]
        assert controller.runnable == 0

    asyncio.run(main())


def test_a_run_stopped_between_slices_makes_no_more_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inferlet_run, "SLICE", 0)

    async def main() -> None:
        controller, session = opened()
        lines: list[str] = []

        def log(line: str) -> None:
            lines.append(line)
            asyncio.get_running_loop().call_soon(session.stop, "wall")

        session.parts.follower.log = log
        turn = [c.LogCall(id=number, message="a") for number in range(9)]
        InferletRun(controller, session, Turns(turn)).start()
        await settled()
        assert lines == ["a"]
        assert session.parts.outcome.error == "wall"
        assert controller.runnable == 0

    asyncio.run(main())


def test_vocabularies_that_are_answered_are_one_object() -> None:
    async def main() -> None:
        controller, session = opened()
        driver = Turns([c.GetVocabCall(id=1), c.GetVocabCall(id=2)])
        InferletRun(controller, session, driver).start()
        await settled()
        first, second = driver.answers[1]
        assert first.value is second.value
        assert list(first.value) == [b"a", b"b"]

    asyncio.run(main())


def test_answers_are_one_list_of_json() -> None:
    answers = [
        CallAnswer(1, [b"ab", "x"]),
        CallAnswer(2),
        CallAnswer(3, None, Fault("invalid", "no")),
    ]
    error = {"code": "invalid", "message": "no"}
    plain = [{"id": 1, "value": ["YWI=", "x"]}, {"id": 2}, {"id": 3, "error": error}]
    whole = msgspec.json.encode(plain)
    assert write_text(answers, len(whole)) == whole
    assert write_text([], 2) == b"[]"
    with pytest.raises(ProgramEnded, match=f"answer_bytes: .* more than {len(whole) - 1} bytes"):
        write_text(answers, len(whole) - 1)


def test_answers_beyond_the_limit_are_not_written() -> None:
    class Watched(list[Any]):
        read = 0

        def __iter__(self) -> Any:
            for one in super().__iter__():
                Watched.read += 1
                yield one

    answers = Watched(CallAnswer(number, "x" * 100) for number in range(1000))
    with pytest.raises(ProgramEnded):
        write_text(answers, 1000)
    assert Watched.read <= 10


def test_other_work_is_done_between_turns_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "TURNS_SECONDS", 0)

    async def main() -> None:
        controller, _ = opened()
        order: list[str] = []

        class Ready:
            def __init__(self, name: str) -> None:
                self.name = name

            def take_turn(self) -> None:
                order.append(self.name)
                asyncio.get_running_loop().call_soon(order.append, "tick")
                if self.name == "b":
                    raise ValueError("a fault of the control layer")
                if self.name == "a":
                    controller.woken(Ready("d"))

        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for name in "abc":
            controller.woken(Ready(name))
        await settled()
        assert order == ["a", "tick", "b", "tick", "c", "tick", "d", "tick"]

    asyncio.run(main())
