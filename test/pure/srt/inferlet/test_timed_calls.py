"""Calls that take time: each is answered, also where the work behind it fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet import outbound
from sglang.srt.inferlet.driver import CallAnswer
from sglang.srt.inferlet.leases import Leases
from sglang.srt.inferlet.program_limits import TRUSTED, ProgramLimits, Rights
from sglang.srt.inferlet.runtime_calls import RuntimeCalls
from sglang.srt.inferlet.served import RunParts, Served


class Session:
    """The session of a program that makes one call."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()

    def tell(self, call: int, queue: int, value: Any) -> None:
        self.answer.set_result(CallAnswer(call, value))

    def refuse(self, call: int, queue: int, fault: Any) -> None:
        self.answer.set_result(CallAnswer(call, None, fault))


def answer_of(call: c.ProgramCall, answer: Any) -> CallAnswer:
    """The answer to a call, over a server whose completions are ``answer``."""

    async def complete(body: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> CallAnswer:
        session = Session()
        served = Served(None, None, None, Leases(complete))  # type: ignore[arg-type]
        parts = RunParts(served, None, TRUSTED, ProgramLimits(), None)  # type: ignore[arg-type]
        calls = RuntimeCalls(parts, session)  # type: ignore[arg-type]
        getattr(calls, c.name_of(call))(call)
        return await asyncio.wait_for(session.answer, 20)

    return asyncio.run(main())


def test_several_completions_are_refused_by_name() -> None:
    call = c.GenerateLease(id=1, text="a", params={"n": 2})
    found = answer_of(call, [{"text": "b"}, {"text": "c"}])
    assert found.error is not None
    assert found.error.code == "failed"
    assert "call 1, generate: params ask for several completions" in found.error.message


@pytest.mark.parametrize("fault", [KeyError("meta_info"), TypeError("no list")])
def test_a_fault_of_the_server_answers_the_call(fault: Exception) -> None:
    found = answer_of(c.SelectLease(id=1, text="a", choices=["b", "c"]), fault)
    assert found.error is not None
    assert found.error.code == "internal"


def test_http_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def slow(*_: Any) -> str:
        names.append(threading.current_thread().name)
        return "text"

    monkeypatch.setattr(outbound, "request", slow)
    for call in (
        c.HttpGetCall(id=1, url="http://127.0.0.1/"),
        c.HttpPostCall(id=1, url="http://127.0.0.1/", body=""),
    ):
        assert answer_of(call, None).value == "text"
    assert len(names) == 2
    assert all(name.startswith("srt-inferlet-http") for name in names)


def test_a_tenant_whose_hosts_are_slow_leaves_threads_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going, done = threading.Semaphore(0), threading.Event()

    def slow(url: str, body: Any, rights: Rights, limits: Any) -> str:
        if rights.owner == "ann":
            going.release()
            done.wait(20)
        return rights.owner

    monkeypatch.setattr(outbound, "request", slow)

    async def main() -> list[str]:
        found = outbound.Outbound()
        ann, bob = (
            [found.fetched("", None, Rights(owner=name), ProgramLimits()) for _ in range(count)]
            for name, count in (("ann", 3 * outbound.THREADS), ("bob", 3))
        )
        ended = asyncio.gather(*ann[: outbound.SHARE])
        for _ in range(outbound.SHARE):
            await asyncio.to_thread(going.acquire)
        ended.cancel()  # a thread goes on behind the end of its run
        waiting = asyncio.gather(*ann[outbound.SHARE :])
        quick = await asyncio.wait_for(asyncio.gather(*bob), 10)
        assert not going.acquire(blocking=False)
        done.set()
        return [*quick, *await waiting]

    assert asyncio.run(main()) == ["bob"] * 3 + ["ann"] * (3 * outbound.THREADS - outbound.SHARE)
