"""LocalEngine and Client on asyncio, over a fake worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import sglang as sgl
from helpers.desk import generate
from helpers.fake_worker import TOKEN_BYTES, FakeWorker, fake_info
from helpers.simulation import expected
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Close, Done, Failed, Goal, Open, Tokens, Verb
from sglang.srt.core.space_messages import SpaceEnded, SpaceEvent, SpaceReply
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.executor import Threaded
from sglang.srt.engine.local import LocalEngine

PROMPT = [3, 1, 4, 1, 5]


class Gated(FakeWorker):
    """Waits for ``gate`` before each pass; ``bomb`` makes the engine itself die."""

    def __init__(self) -> None:
        super().__init__(1)
        self.gate = threading.Event()
        self.gate.set()
        self.entered, self.bomb = threading.Event(), False

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        self.entered.set()
        self.gate.wait(60)
        if self.bomb:
            return StepResult(batch.id, [None])  # type: ignore[list-item]
        return super().run(batch, masks)


def verbs(client: Client, prompt: list[int], goal: Goal) -> tuple[int, int, list[Verb]]:
    context, request = client.new_id(), client.new_id()
    opened = Open(context, ints(prompt).tobytes())
    return context, request, [opened, Advance(context, request, goal, close=True)]


async def text(client: Client, prompt: list[int], goal: Goal) -> list[int]:
    _, request, messages = verbs(client, prompt, goal)
    out: list[int] = []
    async for event in client.submit(request, messages):
        assert not isinstance(event, Failed), event
        if isinstance(event, Tokens):
            out += event.tokens
    return out


Story = Callable[[LocalEngine, Client, Gated], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    """Run a story on a fresh engine and loop, then stop the engine."""

    async def main() -> None:
        worker = Gated()
        engine = LocalEngine(Config(), TOKEN_BYTES, (Threaded(worker), fake_info(4096, 1)))
        try:
            client = engine.client_on(asyncio.get_running_loop())
            await asyncio.wait_for(story(engine, client, worker), 60)
        finally:
            worker.gate.set()
            engine.close()
        assert not engine._thread.is_alive()

    asyncio.run(main())


def test_many_requests_at_once() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        goal = generate(9)
        prompts = [[*PROMPT, n] for n in range(40)]
        texts = await asyncio.gather(*(text(client, prompt, goal) for prompt in prompts))
        assert texts == [expected(prompt, goal.sampling).tokens for prompt in prompts]
        assert client.pending == 0

    tell(story)


def test_there_is_one_client() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        with pytest.raises(RuntimeError, match="has a client already"):
            engine.client_on(asyncio.get_running_loop())

    tell(story)


def test_closing_ends_what_is_pending() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        worker.gate.clear()
        waiting = [asyncio.ensure_future(text(client, PROMPT, generate(9))) for _ in range(3)]
        control = asyncio.ensure_future(client.control("ping"))
        assert await asyncio.to_thread(worker.entered.wait, 60)
        engine._channel.verbs.put(None)  # as ``close`` begins, and surely before the pass ends
        worker.gate.set()
        await asyncio.to_thread(engine.close)
        results = await asyncio.gather(*waiting, control, return_exceptions=True)
        assert all(isinstance(r, EngineLost) for r in results[:3])
        with pytest.raises(EngineLost, match="was shut down"):
            client.send(Close(1))
        with pytest.raises(EngineLost):
            client.submit(99, [])
        assert client.pending == 0

    tell(story)


def test_a_client_of_an_engine_that_has_ended_is_told() -> None:
    async def main() -> None:
        engine = LocalEngine(Config(), TOKEN_BYTES, (Threaded(Gated()), fake_info(64, 1)))
        engine.close()
        client = engine.client_on(asyncio.get_running_loop())
        with pytest.raises(EngineLost):
            await client.control("ping")

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_engine_dying_ends_what_is_pending() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        worker.bomb = True
        with pytest.raises(EngineLost, match="the engine died: AttributeError"):
            await text(client, PROMPT, generate(9))

    tell(story)


def test_a_cancelled_reader_leaves_the_others_alone() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        worker.gate.clear()
        context, request, messages = verbs(client, PROMPT, generate(200))
        inbox = client.submit(request, messages)

        async def read() -> None:
            try:
                async for _ in inbox:
                    pass
            except asyncio.CancelledError:
                inbox.close()
                client.send(Close(context))
                raise

        reader = asyncio.ensure_future(read())
        other = asyncio.ensure_future(text(client, [*PROMPT, 9], generate(9)))
        await asyncio.sleep(0.01)
        reader.cancel()
        worker.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await other == expected([*PROMPT, 9], generate(9).sampling).tokens
        stats = (await client.control("stats")).data
        assert (stats["aborted"], stats["finished"], stats["contexts"]) == (1, 1, 0)
        assert client.pending == 0

    tell(story)


def test_an_inbox_ends_with_its_terminal_event() -> None:
    async def story(engine: LocalEngine, client: Client, worker: Gated) -> None:
        _, request, messages = verbs(client, PROMPT, generate(2))
        inbox = client.submit(request, messages)
        events = [event async for event in inbox]
        assert [type(event) for event in events] == [Tokens, Tokens, Done]
        assert [event async for event in inbox] == []

    tell(story)


def test_verbs_that_cannot_be_sent_hold_up_nobody_else() -> None:
    async def main() -> None:
        sent: list[Verb] = []

        def transmit(verbs: Sequence[Verb]) -> None:
            if any(verb.namespace == "\ud800" for verb in verbs if isinstance(verb, Open)):
                raise ValueError("no such text")
            sent.extend(verbs)

        client = Client(fake_info(64, 1), transmit)
        with pytest.raises(ValueError, match="no such text"):
            client.send(Open(1, b"", "\ud800"))
        client.send(Close(2))
        assert sent == [Close(2)]

    asyncio.run(main())


def test_events_of_a_space_go_to_its_listener() -> None:
    async def main() -> None:
        client = Client(fake_info(64, 1), lambda _: None)
        heard: list[SpaceEvent] = []
        for space in (1, 2, 3):
            client.listen(space, heard.append)
        client.unlisten(2)
        events: list[Any] = [
            SpaceReply(1, 5, 2),
            SpaceReply(2, 5),
            SpaceReply(9, 5),
            SpaceEnded(1, "a", "b"),
        ]
        client.deliver(events)
        client.deliver([SpaceReply(1, 6)])  # behind the end
        assert heard == [events[0], events[3]]
        client.fail(EngineLost("it died"))
        assert heard[2:] == [SpaceEnded(3, "lost", "it died")]

    asyncio.run(main())


def test_a_package_that_is_missing_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch is imported when the model is loaded, after all else."""

    def lacking(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("sglang.srt.engine.local.LocalEngine", lacking)
    with pytest.raises(sgl.Unsupported, match=r"'\.\[srt\]'.*\(No module named 'torch'\)"):
        sgl.Engine()
