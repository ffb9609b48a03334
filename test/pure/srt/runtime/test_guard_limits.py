"""Limits of a key, and turns: counted exactly, named in errors, and no tenant pays for another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http_server import GOLDEN, Served, is_error, serve_text
from helpers.waiting import until
from sglang.srt.config import Config
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.fair_queue import FairQueue
from sglang.srt.runtime.tenants import Key, Tenant, Tenants

LONG = {"max_new_tokens": 900, "ignore_eos": True}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(tenant: Tenant) -> RequestError:
    with pytest.raises(RequestError) as caught:
        tenant.enter()
    assert caught.value.code == "rate_limit_exceeded"
    return caught.value


def test_requests_at_once() -> None:
    tenant = Tenant(Key(name="a", key="k", max_concurrent_requests=2))
    tenant.enter()
    tenant.enter()
    assert "2 requests at once (max_concurrent_requests)" in refused(tenant).message
    tenant.leave()
    tenant.enter()
    refused(tenant)
    assert tenant.open == 2


def test_requests_a_minute() -> None:
    clock = Clock()
    tenant = Tenant(Key(name="a", key="k", requests_per_minute=3), clock=clock)
    for _ in range(3):
        tenant.enter()
    error = refused(tenant)
    assert "3 requests a minute" in error.message
    assert error.retry == 20
    clock.now += 19.9
    assert refused(tenant).retry == 1
    clock.now += 0.2
    tenant.enter()
    refused(tenant)
    clock.now += 1e9  # never more than a minute's worth
    for _ in range(3):
        tenant.enter()
    refused(tenant)


def test_tokens_a_minute_are_a_debt_where_more_came() -> None:
    clock = Clock()
    tenant = Tenant(Key(name="a", key="k", tokens_per_minute=60), clock=clock)
    tenant.enter()
    tenant.charge(100)  # 40 too many, and one token to begin with
    error = refused(tenant)
    assert "60 tokens a minute" in error.message
    assert error.retry == 41
    clock.now += 41
    tenant.enter()


def test_requests_of_batches_are_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": "a", "key": "k", "tokens_per_minute": 60, "priority": 5}]))
    tenants = Tenants(Config.of(api_keys_file=str(file)))
    caller = tenants.caller_of("a", "r")
    assert caller is not None
    assert (caller.tenant, caller.priority, caller.admin) == ("a", 5, False)
    assert caller.charge is not None
    caller.charge(100)
    with pytest.raises(RequestError, match="60 tokens a minute"):
        tenants.caller_of("a", "r")
    assert tenants.caller_of("gone", "r") is None
    assert tenants.caller_of("", "r") is None
    alone = Tenants(Config.of(admin_api_key="k")).caller_of("", "r")
    assert alone is not None
    assert not alone.admin
    everybody = Tenants(Config.of()).caller_of("", "r")
    assert everybody is not None
    assert everybody.admin


def test_a_change_of_limits_forgives_nothing() -> None:
    clock = Clock()
    tenant = Tenant(Key(name="a", key="k", requests_per_minute=3), clock=clock)
    for _ in range(3):
        tenant.enter()
    tenant.change(Key(name="a", key="k", requests_per_minute=4), "")
    tenant.enter()
    refused(tenant)
    tenant.change(Key(name="a", key="k", requests_per_minute=2), "")
    assert refused(tenant).retry == 90  # one of two at once, and two that are owed
    tenant.change(Key(name="a", key="k"), "")
    tenant.enter()


# -- over HTTP ------------------------------------------------------------------------------------


def keys_file(directory: Path, *entries: dict[str, Any]) -> str:
    file = directory / "keys.json"
    file.write_text(json.dumps([{"key": f"key-{e['name']}", **e} for e in entries]))
    return str(file)


def http_of(server: Served, name: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer key-{name}"}
    return httpx.Client(base_url=server.url, timeout=60, headers=headers)


def test_limits_over_http_are_exact_whatever_ends_a_request(tmp_path: Path) -> None:
    file = keys_file(
        tmp_path,
        {"name": "few", "max_concurrent_requests": 2},
        {"name": "rare", "requests_per_minute": 4},
        {"name": "short", "tokens_per_minute": 20},
        {"name": "boss", "admin": True},
    )
    config = Config.of(api_keys_file=file)
    with serve_text(tmp_path / "t", config) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        golden = server.client.golden()
        few = server.state.tenants._tenants["few"]
        with http_of(server, "few") as http:
            for body in (GOLDEN, {}, {"text": ""}, {**GOLDEN, "stream": True}):
                for _ in range(3):
                    http.post("/generate", json=body)
                    http.post("/nowhere", json=body)
            assert few.open == 0
            server.worker.seconds = 0.01
            long = {"text": "a", "sampling_params": LONG, "stream": True}
            with http.stream("POST", "/generate", json=long) as first, \
                 http.stream("POST", "/generate", json=long) as second:  # fmt: skip
                lines = [first.iter_lines(), second.iter_lines()]
                assert all(next(each) for each in lines)
                error = http.post("/generate", json=GOLDEN)
                assert "max_concurrent_requests" in is_error(error, 429)["message"]
                assert int(error.headers["Retry-After"]) >= 1
                assert http.get("/v1/models").status_code == 200  # not counted
                assert http.post("/abort_request", json={"rid": "x"}).status_code == 200
                with http_of(server, "rare") as other:
                    assert other.post("/generate", json=GOLDEN).status_code == 200
            until(lambda: few.open == 0)  # both have left
            assert http.post("/generate", json=GOLDEN).status_code == 200
        with http_of(server, "rare") as http:
            codes = [http.post("/generate", json={}).status_code for _ in range(4)]
            assert codes == [400, 400, 400, 429]  # one was counted above
            last = http.post("/generate", json=GOLDEN)
            assert "4 requests a minute" in is_error(last, 429)["message"]
            assert 1 <= int(last.headers["Retry-After"]) <= 15
        with http_of(server, "short") as http:
            done = http.post("/generate", json=GOLDEN).json()["meta_info"]
            spent = done["prompt_tokens"] + done["completion_tokens"]
            assert spent > 20
            error = http.post("/generate", json=GOLDEN)
            assert "20 tokens a minute" in is_error(error, 429)["message"]
            assert abs(int(error.headers["Retry-After"]) - 3 * (spent - 19)) <= 4
        assert server.client.idle()
        assert server.client.golden() == golden


def test_tokens_of_a_client_that_leaves_are_charged(tmp_path: Path) -> None:
    file = keys_file(tmp_path, {"name": "a", "tokens_per_minute": 500},
                     {"name": "boss", "admin": True})  # fmt: skip
    with serve_text(tmp_path / "t", Config.of(api_keys_file=file)) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        server.worker.seconds = 0.002
        tenant = server.state.tenants._tenants["a"]
        body = {"input_ids": [5] * 100, "sampling_params": {**LONG, "n": 2}, "stream": True}
        with http_of(server, "a") as http, http.stream("POST", "/generate", json=body) as reply:
            lines = reply.iter_lines()
            for _ in range(60):  # an id, data and an empty line each
                next(lines)
        stats = server.client.idle()
        charged = 500 - tenant._tokens._level
        made = stats["generated_tokens"]
        assert made > 20
        assert made - 30 <= charged - 100 <= made + 1  # tokens in flight when a client leaves


def test_tenants_meet_no_kv_of_each_other(tmp_path: Path) -> None:
    file = keys_file(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "c", "shared_cache": True},
                     {"name": "d", "shared_cache": True})  # fmt: skip

    def cached(server: Served, name: str, **fields: Any) -> int:
        with http_of(server, name) as http:
            body = {**GOLDEN, "text": "a text of some length for the cache", **fields}
            return int(http.post("/generate", json=body).json()["meta_info"]["cached_tokens"])

    with serve_text(tmp_path / "t", Config.of(api_keys_file=file)) as server:
        assert cached(server, "a") == 0
        assert cached(server, "a") > 0
        assert cached(server, "b") == cached(server, "c") == 0
        assert cached(server, "d") > 0  # c's
        for salt in ("a\0", "a", "\0a\0"):
            assert cached(server, "d", cache_salt=salt) == 0


# -- no tenant pays for another: row 38 -----------------------------------------------------------


@pytest.mark.slow
def test_a_flood_of_one_leaves_room_and_turns_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the server, not timed: how many of the flood's requests end while the other's one
    is there."""
    file = keys_file(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "boss", "admin": True})
    body = {"text": "flood", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
    running, queued, flood = 4, 60, 64
    with serve_text(
        tmp_path / "t", Config.of(api_keys_file=file), running=running, queued=queued
    ) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        golden = server.client.golden()
        server.worker.seconds = 0.5  # until the flood is there
        finish, ended, beside = server.state.runtime.finish, 0, []

        async def counted(*args: Any) -> Any:
            nonlocal ended
            before = ended
            result = await finish(*args)
            ended += 1
            if args[0][0].rid == "b":
                beside.append((ended - before, ended))
            return result

        monkeypatch.setattr(server.state.runtime, "finish", counted)
        with concurrent.futures.ThreadPoolExecutor(flood) as pool, http_of(server, "a") as a:
            a.timeout = httpx.Timeout(60, pool=60)
            asked = [pool.submit(a.post, "/generate", json=body) for _ in range(flood)]
            until(lambda: server.state.runtime.queue.held("a") >= (running + queued) // 2)
            server.worker.seconds = 0.004
            with http_of(server, "b") as b:
                for _ in range(2):
                    assert b.post("/generate", json={**body, "rid": "b"}).status_code == 200
            # Requests inside, those admitted meanwhile, and the other tenant's own.
            assert all(passed <= 4 * running for passed, _ in beside), beside
            assert beside[1][1] < flood // 2
            replies = [future.result() for future in asked]
        good = [reply for reply in replies if reply.status_code == 200]
        for reply in replies:
            if reply.status_code != 200:
                assert is_error(reply, 429)["code"] == "queue_full"
        assert (running + queued) // 2 <= len(good) < flood
        server.worker.seconds = 0.0
        server.client.idle()
        assert server.state.runtime.queue.waiting == server.state.runtime.queue.held("a") == 0
        assert server.client.golden() == golden


def test_a_turn_that_comes_to_who_has_just_left_is_given_back() -> None:
    async def main() -> None:
        turns, gate = FairQueue(1), asyncio.Event()

        async def work(name: str) -> None:
            async with turns.turn(name, 1):
                await gate.wait()

        tasks = [asyncio.ensure_future(work(name)) for name in "ab"]
        await asyncio.sleep(0)
        gate.set()  # a ends, and b's turn comes, between b's cancellation and b's own last step
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not turns._inside
        assert turns.waiting == 0
        await asyncio.wait_for(work("c"), 60)

    asyncio.run(main())


def test_many_prompts_whose_client_leaves_keep_no_turns(tmp_path: Path) -> None:
    file = keys_file(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "boss", "admin": True})
    config = Config.of(api_keys_file=file)
    with serve_text(tmp_path / "t", config, running=2, queued=60) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        server.worker.seconds = 0.002
        body = {"text": ["a"] * 8, "stream": True, "sampling_params": LONG}
        for _ in range(3):
            with http_of(server, "a") as a, a.stream("POST", "/generate", json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                assert server.state.runtime.queue.held("a") == 8
            until(lambda: server.state.open_requests == 0)
            assert server.state.runtime.queue.held("a") == server.state.runtime.queue.waiting == 0
            with http_of(server, "b") as b:
                assert b.post("/generate", json=GOLDEN).status_code == 200
        server.client.idle()


def test_who_waits_for_a_turn_is_aborted_too(tmp_path: Path) -> None:
    file = keys_file(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "boss", "admin": True})
    config = Config.of(api_keys_file=file)
    with serve_text(tmp_path / "t", config, running=2, queued=60) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        server.worker.seconds = 0.002

        def send(a: httpx.Client, rid: str) -> httpx.Response:
            body = {"text": "a", "rid": rid, "sampling_params": {**LONG, "n": 2}}
            return a.post("/generate", json=body)

        def abort(http: httpx.Client, **what: Any) -> int:
            return int(http.post("/abort_request", json=what).json()["aborted"])

        pool = concurrent.futures.ThreadPoolExecutor(5)
        with http_of(server, "a") as a, http_of(server, "b") as b, pool:
            asked = [pool.submit(send, a, f"job{i}") for i in range(4)]
            texts = {"input": ["a", "b"], "rid": "texts"}
            read = pool.submit(a.post, "/v1/embeddings", json=texts)
            until(lambda: server.state.runtime.queue.held("a") == 4 * 2 + 2)
            assert server.state.runtime.queue.waiting >= 6
            assert abort(b, rid="job3") == 0
            assert abort(a, rid="texts") == 2
            assert is_error(read.result(60), 400)["message"] == "The request was aborted."
            assert abort(a, abort_all=True) == 4
            for future in asked:
                ends = [one["meta_info"]["finish_reason"] for one in future.result(60).json()]
                assert [end["type"] for end in ends] == ["abort", "abort"]
        server.client.idle()
        assert server.state.runtime.queue.waiting == server.state.runtime.queue.held("a") == 0


def test_a_flood_of_texts_to_embed_leaves_turns_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = keys_file(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "boss", "admin": True})
    config = Config.of(api_keys_file=file)
    with serve_text(tmp_path / "t", config, running=4, queued=600) as server:
        server.client.headers["Authorization"] = "Bearer key-boss"
        server.worker.seconds = 0.5  # until all are there
        finish, beside = server.state.runtime.finish, []

        async def counted(*args: Any) -> Any:
            stats = server.state.runtime.completion.engines.clients[0].control
            before = (await stats("stats")).data["finished"]
            result = await finish(*args)
            beside.append((await stats("stats")).data["finished"] - before)
            return result

        monkeypatch.setattr(server.state.runtime, "finish", counted)
        texts = {"input": [f"{i} {i}" for i in range(300)], "pooling": "mean"}
        with concurrent.futures.ThreadPoolExecutor(1) as pool, http_of(server, "a") as a:
            read = pool.submit(a.post, "/v1/embeddings", json=texts)
            until(lambda: server.state.runtime.queue.held("a") == 300)
            server.worker.seconds = 0.02
            with http_of(server, "b") as b:
                body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
                assert b.post("/generate", json=body).status_code == 200
            assert len(beside) == 1
            assert beside[0] <= 80
            assert len(read.result(60).json()["data"]) == 300
        server.client.idle()
        assert server.state.runtime.queue.waiting == server.state.runtime.queue.held("a") == 0


def test_turns_go_round() -> None:
    async def main() -> list[str]:
        turns, order, gates = FairQueue(2), [], [asyncio.Event() for _ in range(9)]

        async def work(name: str, gate: asyncio.Event) -> None:
            async with turns.turn(name, 1):
                order.append(name)
                await gate.wait()

        names = ["a", "a", "a", "a", "a", "b", "b", "c"]
        tasks = [asyncio.ensure_future(work(name, gate)) for name, gate in zip(names, gates)]
        for gate in gates:
            await asyncio.sleep(0)
            gate.set()
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        assert not turns._inside
        return order

    assert asyncio.run(main())[:5] == ["a", "a", "b", "a", "c"]


def test_a_turn_that_is_given_up_is_nobodys() -> None:
    async def main() -> None:
        turns = FairQueue(2)
        async with turns.turn("a", 2):
            waiting = [asyncio.ensure_future(_hold(turns, "b")) for _ in range(3)]
            await asyncio.sleep(0)
            assert turns.waiting == 3
            waiting[0].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert turns.waiting == 2
        await asyncio.sleep(0)
        waiting[1].cancel()  # has its turn by now
        await asyncio.gather(*waiting, return_exceptions=True)
        assert turns.waiting == turns.held("a") == turns.held("b") == 0
        async with turns.turn("c", 5):  # more than the room: alone
            assert turns.held("c") == 5

    asyncio.run(main())


async def _hold(turns: FairQueue, name: str) -> None:
    async with turns.turn(name, 1):
        await asyncio.sleep(0.001)
