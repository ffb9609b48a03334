"""Adapters come and go under traffic: KV is matched only under the same loading of the same
adapter, texts are those of a quiet engine, and nothing is left behind."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest
from helpers.desk import Desk, generate
from helpers.either import Either
from helpers.fake_worker import ADAPTED, TOKEN_BYTES, FakeWorker, next_token
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Close,
    Embed,
    Fill,
    ForkContext,
    LoadAdapter,
    Open,
    UnloadAdapter,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline


class AdapterDesk(Desk):
    def __init__(self, page_size: int = 1, depth: int = 1, seed: int = 0, **changes: Any) -> None:
        super().__init__(600, page_size, max_running_requests=6)
        self.worker = FakeWorker(page_size)
        facts = {"lora": True, "max_loras_per_batch": 2, "max_loaded_loras": 4, **changes}
        info = msgspec.structs.replace(self.engine.info, **facts)
        executor = Either(self.worker, seed) if depth == 2 else Inline(self.worker)
        self.engine = EngineCore(
            executor, info, ScheduleConfig(max_running_requests=6, chunked_prefill_size=9),
            TOKEN_BYTES,
        )  # fmt: skip

    def with_adapter(self, tokens: list[int], adapter: str, salt: str = "") -> int:
        context = next(self._ids)
        self.send(Open(context, ints(tokens).tobytes(), salt, adapter=adapter))
        return context

    def load(self, name: str, path: str = "here") -> bool:
        number = next(self._ids)
        self.send(LoadAdapter(number, name, path))
        return self.settled(number)

    def unload(self, name: str) -> int:
        number = next(self._ids)
        self.send(UnloadAdapter(number, name))
        return number

    def settled(self, number: int) -> bool:
        """Whether a verb was obeyed, when it is answered."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [reply for reply in self.replies if reply.id == number]
            if found:
                return found[0].ok
            self.send()
            self.step()
        raise AssertionError("no reply")


def text(prompt: list[int], adapter: int, count: int) -> list[int]:
    """Greedy text after the prompt under an adapter, computed from the definition."""
    seen = [token + ADAPTED * adapter for token in prompt]
    for _ in range(count):
        seen.append(next_token(seen) + ADAPTED * adapter)
    return [token - ADAPTED * adapter for token in seen[len(prompt) :]]


def test_kv_is_met_under_the_same_loading_alone() -> None:
    desk = AdapterDesk()
    prompt = list(range(1, 30))

    def cached(adapter: str, salt: str = "") -> int:
        context = desk.with_adapter(prompt, adapter, salt)
        request = desk.advance(context, generate(2), close=True)
        desk.run()
        return desk.done(request).stats.cached_tokens

    assert desk.load("a")
    assert desk.load("b")
    for adapter, salt in (("", ""), ("a", ""), ("b", ""), ("a", "1"), ("", "1")):
        assert cached(adapter, salt) == 0
        assert cached(adapter, salt) == len(prompt) - 1
    # A salt that looks like an adapter's is a salt.
    for salt in ("a", "\x01", "1\0", "(1,)"):
        assert cached("", salt) == 0
    held = desk.engine.store.tree.evictable
    assert desk.settled(desk.unload("a"))
    assert desk.engine.store.tree.evictable < held
    assert desk.load("a")  # the same files, and another adapter all the same
    assert cached("a") == 0
    assert cached("b") == len(prompt) - 1
    assert desk.engine.adapters.counts == {"adapters": 2, "adapter_bytes": 200}
    desk.finish()


def test_an_adapter_that_is_not_there_is_refused() -> None:
    desk = AdapterDesk()
    context = desk.with_adapter([1, 2], "ghost")
    assert "adapter that is not loaded" in desk.failed(desk.advance(context)).message
    assert "not loaded" in desk.failed(desk.advance(context, Embed("mean"))).message
    assert not desk.settled(desk.unload("ghost"))
    assert not desk.load("broken", "bad")
    assert desk.replies[-1].message == "no adapter in PEFT's layout"
    for name in "abcd":
        assert desk.load(name)
    assert not desk.load("a")
    assert "loaded already" in desk.replies[-1].message
    assert not desk.load("e")
    assert "4 may be (--max-loaded-loras)" in desk.replies[-1].message
    off = AdapterDesk(lora=False)
    assert not off.load("a")
    assert "--enable-lora" in off.replies[-1].message
    desk.finish()


def test_an_adapter_leaves_when_its_last_context_is_closed() -> None:
    desk = AdapterDesk()
    assert desk.load("a")
    context = desk.with_adapter([1, 2, 3], "a")
    child = 900
    desk.send(ForkContext(context, child))
    number = desk.unload("a")
    request = desk.advance(context, generate(5), close=True)  # opened before the unloading
    late = desk.with_adapter([1, 2, 3], "a")
    assert "not loaded" in desk.failed(desk.advance(late, close=True)).message
    desk.run()
    assert desk.tokens(request) == text([1, 2, 3], 1, 5)
    desk.send()
    assert not desk.replies[1:], "the fork still has it"
    assert desk.worker.loaded == {1: "here"}
    desk.send(Close(child))
    assert desk.settled(number)
    assert desk.worker.loaded == {}
    assert [space.adapter for space in desk.engine.store.tree.namespaces] == []
    desk.finish()


def test_a_filled_context_needs_no_place_in_a_pass() -> None:
    """All KV of the context is cached. The request ends although the pass has as many adapters as
    it may."""
    desk = AdapterDesk(max_loras_per_batch=1)
    assert desk.load("a")
    assert desk.load("b")
    desk.advance(desk.with_adapter([1, 2, 3], "b"), Fill(), close=True)
    desk.run()
    request = desk.advance(desk.with_adapter([4, 5], "a"), generate(3), close=True)
    desk.step()
    filled = desk.advance(desk.with_adapter([1, 2, 3], "b"), Fill(), close=True)
    desk.run()
    assert desk.done(filled).stats.cached_tokens == 3
    assert desk.tokens(request) == text([4, 5], 1, 3)
    desk.finish()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_random_histories(part: int) -> None:
    whole, unloaded = map(sum, zip(*(history(seed) for seed in range(part, 30, 3))))
    assert whole > 100
    assert unloaded > 10


def history(seed: int) -> tuple[int, int]:
    """Run a history. Return the number of texts not cut short and of adapters unloaded
    meanwhile."""
    r = random.Random(seed)
    depth = 1 + seed % 2
    desk = AdapterDesk(r.choice((1, 4)), depth, seed)
    wanted: dict[int, list[int]] = {}
    names = "abcdef"
    unloads: list[int] = []
    for _ in range(120):
        deed = r.random()
        if deed < 0.35:
            name = r.choice(["", *names])
            number = desk.engine.adapters.number(name)
            prompt = [r.randrange(5) for _ in range(r.randint(1, 25))]
            count = r.randint(1, 8)
            context = desk.with_adapter(prompt, name, r.choice(["", "s"]))
            request = desk.advance(context, generate(count), close=True)
            if number < 0:
                desk.failed(request)
            else:
                wanted[request] = text(prompt, number, count)
        elif deed < 0.42:
            desk.load(r.choice(names))
        elif deed < 0.5:
            unloads.append(desk.unload(r.choice(names)))
        elif deed < 0.55 and desk.engine.store.contexts:
            desk.send(Close(r.choice(list(desk.engine.store.contexts))))
        else:
            desk.step()
        desk.engine.store.check()
    desk.run()
    unloaded, whole = sum(desk.settled(number) for number in unloads), 0
    for request, tokens in wanted.items():
        got = desk.tokens(request)
        assert got == tokens[: len(got)]
        whole += got == tokens
    assert desk.worker.adapters <= 2
    for name in names:
        if desk.engine.adapters.number(name) > 0:
            assert desk.settled(desk.unload(name))
    assert desk.worker.loaded == {}
    assert desk.engine.adapters.counts == {"adapters": 0, "adapter_bytes": 0}
    assert {space.adapter for space in desk.engine.store.tree.namespaces} <= {0}
    desk.finish()
    return whole, unloaded
