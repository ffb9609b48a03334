"""Sessions: a request sends what is new, and gets the answer that the whole prompt would get."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime import sessions as module
from sglang.srt.runtime.caller import ANYBODY
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateCall
from sglang.srt.runtime.sessions import OpenSession, SessionParams, Sessions, SessionTurn

# -- the tree of one session ----------------------------------------------------------------------


@dataclass
class Book:
    """Sessions, the requests that they aborted, and a clock."""

    sessions: Sessions = field(init=False)
    aborted: list[tuple[str, str]] = field(default_factory=list)
    now: float = 0.0
    tenant: str = ""

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.abort, [1], lambda: self.now)

    def abort(self, rid: str, owner: str) -> int:
        self.aborted.append((rid, owner))
        return 1

    def open(self, **body: Any) -> str:
        return self.sessions.open(OpenSession(**body), self.tenant)

    def begin(self, session: str, name: str, tokens: list[int], **params: Any) -> SessionTurn:
        wanted = SessionParams(id=session, **params)
        return self.sessions.begin(wanted, name, ints(tokens), self.tenant)

    def end(self, turn: SessionTurn, tokens: list[int]) -> None:
        asyncio.run(self._end(turn, tokens))

    async def _end(self, turn: SessionTurn, tokens: list[int]) -> None:
        async def run() -> AsyncGenerator[tuple[int, Output], None]:
            yield 0, Output(0, tokens=tokens)

        async for _ in self.sessions.follow(turn, run):
            pass


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_request_continues_another(book: Book) -> None:
    number = book.open()
    first = book.begin(number, "a", [1, 5, 6])
    book.end(first, [7, 8])
    second = book.begin(number, "b", [1, 9], rid="a")
    assert list(second.prompt) == [1, 5, 6, 7, 8, 9], "the second beginning is left out"
    assert list(book.begin(number, "c", [9], rid="a", offset=-1).prompt) == [1, 5, 6, 7, 9]
    assert list(book.begin(number, "d", [9], rid="a", offset=2).prompt) == [1, 5, 9]
    dropped = book.begin(number, "e", [9], rid="a", drop_previous_output=True)
    assert list(dropped.prompt) == [1, 5, 6, 9]
    assert list(book.begin(number, "f", [1, 2]).prompt) == [1, 2], "another beginning"
    assert book.aborted == []
    with pytest.raises(RequestError, match=r"has no request 'n{59} \.\.\. n{19}'; name one"):
        book.begin(number, "g", [1], rid="n" * 200)


def test_replacing_ends_and_removes_what_followed(book: Book) -> None:
    number = book.open()
    book.end(book.begin(number, "a", [5]), [6])
    book.end(book.begin(number, "b", [7], rid="a"), [8])
    book.begin(number, "c", [9], rid="b")
    again = book.begin(number, "d", [4], rid="a", replace=True)
    assert list(again.prompt) == [5, 6, 4]
    assert book.aborted == [("c", "")]
    for gone in "bc":
        with pytest.raises(RequestError, match=f"has no request '{gone}'"):
            book.begin(number, "x", [1], rid=gone)
    book.begin(number, "e", [3], replace=True)
    assert book.aborted == [("c", ""), ("d", "")]
    with pytest.raises(RequestError, match="has no request 'a'"):
        book.begin(number, "x", [1], rid="a")


def test_a_running_request_is_continued_where_it_is_replaced(book: Book) -> None:
    number = book.open()
    running = book.begin(number, "a", [5])
    running.output = [6, 7]
    with pytest.raises(RequestError, match="'a' is still running"):
        book.begin(number, "b", [8], rid="a")
    assert list(book.begin(number, "b", [8], rid="a", replace=True).prompt) == [5, 6, 7, 8]
    assert book.aborted == [("a", "")]


def test_a_streaming_session_continues_the_last_request(book: Book) -> None:
    number = book.open(streaming=True)
    book.end(book.begin(number, "a", [5]), [6])
    book.end(book.begin(number, "b", [7]), [8])
    assert list(book.begin(number, "c", [9]).prompt) == [5, 6, 7, 8, 9]
    with pytest.raises(RequestError, match="leave out rid"):
        book.begin(number, "d", [9], rid="a")


def test_a_refused_request_leaves_no_turn(book: Book) -> None:
    number = book.open()
    turn = book.begin(number, "a", [5])

    async def refused() -> None:
        def run() -> AsyncGenerator[tuple[int, Output], None]:
            raise RequestError("too long")

        async for _ in book.sessions.follow(turn, run):
            pass

    with pytest.raises(RequestError, match="too long"):
        asyncio.run(refused())
    book.begin(number, "a", [5])
    assert turn.session.tenant.tokens == 1


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"offset": 4}, "offset is 4; the context of 'a' has 3 tokens"),
        ({"offset": -4}, "offset is -4"),
        ({"rid": "b"}, "has no request 'b'"),
        ({"id": "other"}, "There is no session 'other'"),
        ({"id": None}, "There is no session None"),
    ],
)
def test_what_is_not_there_is_named(book: Book, params: dict[str, Any], told: str) -> None:
    number = book.open()
    book.end(book.begin(number, "a", [5, 6]), [7])
    whole = SessionParams(**{"id": number, "rid": "a", **params})
    with pytest.raises(RequestError) as error:
        book.sessions.begin(whole, "x", ints([1]))
    assert told in error.value.message


def test_bounds_of_sessions(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    monkeypatch.setattr(module, "MAX_TOKENS", 8)
    monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    number = book.open(capacity_of_str_len=4)
    with pytest.raises(RequestError, match=r"5 tokens with those .* opened for 4"):
        book.begin(number, "a", [1, 2, 3, 4, 5])
    book.end(book.begin(number, "a", [1, 2]), [3])
    with pytest.raises(RequestError, match="hold 3 tokens and this request 6") as error:
        book.begin(book.open(), "b", [2] * 6)
    assert error.value.code == "queue_full"
    with pytest.raises(RequestError, match="2 sessions are open and 2 may be"):
        book.open()
    book.begin(number, "c", [4])
    with pytest.raises(RequestError, match="holds 2 requests"):
        book.begin(number, "d", [4])
    for body, told in (
        ({"capacity_of_str_len": -1}, "capacity_of_str_len is -1"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"session_id": "x" * 2000}, "session_id has 2000 characters"),
        ({"session_id": number}, "is open already"),
    ):
        with pytest.raises(RequestError, match=told):
            book.open(**body)
    with pytest.raises(RequestError, match="session_id has 2000 characters"):
        book.sessions.close("x" * 2000)


def test_an_idle_session_is_closed(book: Book) -> None:
    short, long = book.open(timeout=5.0), book.open()
    turn = book.begin(short, "a", [1])
    book.now = 100.0
    book.begin(short, "b", [1])  # the session's first request is still running
    for each in list(turn.session.turns.values()):
        book.end(each, [])
    book.now = 104.0
    book.begin(short, "c", [1], replace=True)
    book.end(turn.session.turns["c"], [2])
    book.now = 110.0
    with pytest.raises(RequestError, match="There is no session"):
        book.begin(short, "d", [1])
    book.now = 3601.0
    with pytest.raises(RequestError, match="There is no session"):
        book.begin(long, "d", [1])
    assert book.sessions._tenants == {}


def test_sessions_close_idle_ones_of_other_tenants(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that never returns keeps nothing; one call looks at a bounded number of sessions."""
    monkeypatch.setattr(module, "SWEPT_SESSIONS", 4)
    book.tenant = "gone"
    for _ in range(10):
        book.end(book.begin(book.open(timeout=5.0), "a", [1, 2, 3]), [4])
    running = book.begin(book.open(timeout=5.0), "a", [1])
    book.tenant = ""
    gone = book.sessions._tenants["gone"]
    book.now = 3.0
    book.open(timeout=5.0)
    assert (len(gone.sessions), gone.tokens) == (11, 41), "none of them is idle yet"
    book.now = 6.0
    left = []
    for _ in range(5):
        book.open(timeout=5.0)
        left.append(len(gone.sessions))
    assert left[0] >= 7, "at most four are closed in one call"
    assert (left[-1], gone.tokens) == (1, 1), "a request that runs keeps its session"
    assert book.aborted == []
    book.end(running, [2])
    book.now = 20.0
    for _ in range(3):
        book.open(timeout=5.0)
    assert "gone" not in book.sessions._tenants
    assert gone.tokens == 0


def test_a_sweep_removes_a_bounded_number_of_turns(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEPT_REQUESTS", 6)
    for _ in range(4):
        session = book.open(timeout=5.0)
        for name in "abc":
            book.end(book.begin(session, name, [1]), [])
    book.now, left = 6.0, []
    for _ in range(2):
        assert not book.sessions.close("none")
        left.append(len(book.sessions._ring))
    assert left == [2, 0]


def test_a_tenant_at_its_limit_closes_its_idle_ones(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEPT_SESSIONS", 0)
    monkeypatch.setattr(module, "MAX_SESSIONS", 2)
    monkeypatch.setattr(module, "MAX_TOKENS", 8)
    for _ in range(2):
        book.end(book.begin(book.open(timeout=5.0), "a", [1, 2]), [3])
    with pytest.raises(RequestError, match="2 sessions are open"):
        book.open()
    book.now = 6.0
    session = book.open(timeout=5.0)
    book.end(book.begin(session, "a", [1] * 8), [])
    book.now = 12.0
    book.begin(book.open(), "a", [1] * 8)
    assert book.sessions._tenants[""].tokens == 8


@pytest.mark.parametrize("close", [True, False])
def test_removing_siblings_compares_none_of_them(
    book: Book, monkeypatch: pytest.MonkeyPatch, close: bool
) -> None:
    """Each sibling is found by its id: a search among the others would compare them."""
    session = book.open()
    book.end(book.begin(session, "top", [1]), [])
    for number in range(200):
        book.end(book.begin(session, f"{number}", [1], rid="top"), [])
    compared = 0

    def compare(one: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    monkeypatch.setattr(SessionTurn, "__eq__", compare)
    if close:
        book.sessions.close(session)
    else:
        turn = book.begin(session, "new", [1], rid="top", replace=True)
        assert set(turn.session.turns) == {"top", "new"}
        assert set(turn.session.turns["top"].children) == {"new"}
    assert compared == 0


def test_finish_of_no_output_says_that_the_engine_is_lost() -> None:
    class Empty:
        async def follow(self, turn: Any, run: Any) -> AsyncGenerator[tuple[int, Output], None]:
            nothing: tuple[tuple[int, Output], ...] = ()
            for item in nothing:
                yield item

    class Idle:
        sessions = Empty()

        def run(self) -> None:
            raise AssertionError

    idle = Idle()
    follow = partial(idle.sessions.follow, cast(SessionTurn, object()))
    call = GenerateCall(cast(EngineRuntime, idle), ANYBODY, [], True, False, None, [], turn=follow)
    with pytest.raises(EngineLost, match="without an answer"):
        asyncio.run(call.finish())


def test_tenants_meet_their_own_sessions_alone(book: Book) -> None:
    number = book.open(session_id="mine")
    book.begin(number, "a", [1])
    with pytest.raises(RequestError, match="There is no session 'mine'"):
        book.sessions.begin(SessionParams(id=number), "b", ints([1]), "other")
    assert book.sessions.open(OpenSession(session_id="mine"), "other") == "mine"
    assert book.sessions.close("mine", "other")
    assert book.aborted == []
    assert book.sessions.close("mine")
    assert book.aborted == [("a", "")]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "replace", "end", "close"]),
        st.integers(0, 5), st.integers(-3, 3), st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(acts=ACTS)
def test_any_history_of_a_session_is_a_tree_of_texts(
    acts: list[tuple[str, int, int, bool]],
) -> None:
    """Compare with plain lists: parents, contexts, running turns and the count of tokens."""
    book = Book()
    number = book.open()
    known: dict[str, tuple[str | None, list[int], list[int], bool]] = {}
    turns: dict[str, SessionTurn] = {}

    def remove(rid: str) -> None:
        for child in [name for name, turn in known.items() if turn[0] == rid]:
            remove(child)
        del known[rid]

    for step, (act, which, offset, drop) in enumerate(acts):
        rid = [*known, None][which % (len(known) + 1)]
        if act == "close":
            running = {name for name, turn in known.items() if turn[3]}
            book.aborted.clear()
            assert book.sessions.close(number)
            assert {name for name, _ in book.aborted} == running
            known.clear()
            number = book.open()
        elif act == "end" and rid is not None and known[rid][3]:
            out = [step, step][: offset + 3]
            book.end(turns[rid], out)
            known[rid] = (known[rid][0], known[rid][1], out, False)
        elif act in ("begin", "replace"):
            params = {"rid": rid, "offset": offset, "drop_previous_output": drop}
            replace, name, more = act == "replace", f"r{step}", [step + 100]
            context: list[int] = []
            if rid is not None:
                _, prompt, out, running_now = known[rid]
                context = prompt + ([] if drop else out)
                if (running_now and not replace) or abs(offset) > len(context):
                    with pytest.raises(RequestError):
                        book.begin(number, name, more, replace=replace, **params)
                    continue
                context = context[:offset] if offset else context
            turns[name] = book.begin(number, name, more, replace=replace, **params)
            if replace:
                children = [n for n, turn in known.items() if rid is None or turn[0] == rid]
                for child in children:
                    if child in known:
                        remove(child)
            assert list(turns[name].prompt) == context + more
            known[name] = (rid, context + more, [], True)
        tenant = book.sessions._tenants[""]
        assert set(tenant.sessions[number].turns) == set(known)
        ended = sum(len(turn[2]) for turn in known.values() if not turn[3])
        assert tenant.tokens == sum(len(turn[1]) for turn in known.values()) + ended


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


def asked(
    http: httpx.Client, prompt: Any, session: dict[str, Any] | None = None, **more: Any
) -> httpx.Response:
    field = "text" if isinstance(prompt, str) else "input_ids"
    sampling = {"max_new_tokens": 6, "temperature": 0, **more.pop("sampling", {})}
    body = {field: prompt, "sampling_params": sampling, "session_params": session, **more}
    return http.post("/generate", json=body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_costs_what_is_new(served: Served, stream: bool) -> None:
    http, encode = served.client, served.tokenizer.encode
    http.post("/flush_cache")
    number = http.post("/open_session", json={"capacity_of_str_len": 1000}).json()
    chunks = ["Let me tell you of the sea. ", "The fish in it are", " and the wind over it is"]
    ids: list[int] = []
    rid = None
    for chunk in chunks:
        session = {"id": number, "rid": rid, "replace": True}
        reply = asked(http, chunk, session, stream=stream)
        assert reply.status_code == 200, reply.text
        if stream:
            reply_json = json.loads(reply.text.split("data: ")[-2])
        else:
            reply_json = reply.json()
        rid = reply_json["meta_info"]["id"]
        ids += encode(chunk, not ids)
        assert reply_json["meta_info"]["prompt_tokens"] == len(ids)
        assert reply_json["output_ids"] == asked(http, ids).json()["output_ids"]
        if len(ids) > len(encode(chunk)):
            assert reply_json["meta_info"]["cached_tokens"] >= len(ids) - len(encode(chunk)) - 1
        ids += reply_json["output_ids"]
    assert http.post("/close_session", json={"session_id": number}).json()["closed"]
    assert not http.post("/close_session", json={"session_id": number}).json()["closed"]
    assert is_error(asked(http, "a", {"id": number}), 400)["param"] == "session_params"
    served.client.idle()


def test_a_branch_is_replaced(served: Served) -> None:
    http = served.client
    number = http.post("/open_session").json()
    again = is_error(http.post("/open_session", json={"session_id": number}), 400)
    assert "is open already" in again["message"]
    first = asked(http, "The sky is", {"id": number}).json()["meta_info"]["id"]
    second = asked(http, " and", {"id": number, "rid": first}).json()["meta_info"]["id"]
    session = {"id": number, "rid": first, "offset": -1, "replace": True}
    assert asked(http, " but", session).status_code == 200
    gone = asked(http, " so", {"id": number, "rid": second})
    assert "has no request" in is_error(gone, 400)["message"]
    late = asked(http, " so", session, return_logprob=True, logprob_start_len=500)
    assert "logprob_start_len is 500" in is_error(late, 400)["message"]
    http.post("/close_session", json={"session_id": number})


@pytest.mark.parametrize(
    "more",
    [
        {"text": ["a", "b"]},
        {"sampling_params": {"n": 2}},
        {"text": None, "parts": ["a", ["b", "c"]]},
        {"sampling_params": {"choices": ["a", "b"], "choices_scoring": "whole"}},
    ],
)
def test_one_prompt_and_one_completion_alone(served: Served, more: dict[str, Any]) -> None:
    number = served.client.post("/open_session").json()
    body = {"text": "a", "session_params": {"id": number}, **more}
    error = is_error(served.client.post("/generate", json=body), 400)
    assert "one prompt of text or ids with n = 1" in error["message"]
    served.client.post("/close_session", json={"session_id": number})


def test_a_session_survives_a_flush(served: Served) -> None:
    http = served.client
    number = http.post("/open_session").json()
    first = asked(http, "The sky is", {"id": number}).json()
    rid = first["meta_info"]["id"]
    before = asked(http, " and", {"id": number, "rid": rid}).json()["output_ids"]
    served.client.idle()
    assert http.post("/flush_cache").status_code == 200
    reply = asked(http, " and", {"id": number, "rid": rid, "replace": True}).json()
    assert reply["output_ids"] == before
    assert reply["meta_info"]["cached_tokens"] == 0
    http.post("/close_session", json={"session_id": number})


def test_what_runs_is_aborted_where_it_is_replaced_or_closed(served: Served) -> None:
    http = served.client
    number = http.post("/open_session").json()
    endless = {"max_new_tokens": 100_000, "ignore_eos": True}
    replies: dict[str, httpx.Response] = {}

    def run(rid: str) -> threading.Thread:
        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=120) as own:
                replies[rid] = asked(own, "The sky", {"id": number}, rid=rid, sampling=endless)

        thread = threading.Thread(target=ask)
        thread.start()
        while rid not in served.state.runtime.sessions._tenants[""].sessions[number].turns:
            time.sleep(0.01)
        return thread

    served.worker.seconds = 0.002
    try:
        first = run("first")
        reply = asked(http, " is", {"id": number, "rid": "first", "replace": True}, rid="x")
        assert reply.status_code == 200
        first.join(120)
        second = run("second")
        assert http.post("/close_session", json={"session_id": number}).json()["closed"]
        second.join(120)
    finally:
        served.worker.seconds = 0.0
    for rid in ("first", "second"):
        assert replies[rid].json()["meta_info"]["finish_reason"]["type"] == "abort"
    served.client.idle()


def test_a_client_that_goes_leaves_what_was_written(served: Served) -> None:
    http = served.client
    number = http.post("/open_session").json()
    body = {"text": "The sky", "rid": "left", "session_params": {"id": number}, "stream": True,
            "sampling_params": {"max_new_tokens": 100_000, "ignore_eos": True}}  # fmt: skip
    served.worker.seconds = 0.002
    with http.stream("POST", "/generate", json=body) as stream:
        next(stream.iter_lines())
    served.worker.seconds = 0.0
    turn = served.state.runtime.sessions._tenants[""].sessions[number].turns["left"]
    deadline = time.monotonic() + 60
    while turn.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(turn.output) >= 1
    reply = asked(http, " is", {"id": number, "rid": "left"})
    assert reply.json()["meta_info"]["prompt_tokens"] > len(turn.output)
    http.post("/close_session", json={"session_id": number})
    served.client.idle()


# -- pause, continue, load ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["abort", "in_place", "retract"])
def test_a_pause_over_http(served: Served, mode: str) -> None:
    http, found = served.client, list[httpx.Response]()
    golden = http.golden()

    def ask() -> None:
        with httpx.Client(base_url=served.url, timeout=120) as own:
            found.append(asked(own, "the lazy dog", sampling={"max_new_tokens": 24}))

    assert http.post("/pause_generation", json={"mode": mode}).json()["status"] == "ok"
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    while http.get("/get_load").json()[0]["num_waiting_reqs"] < 2:
        time.sleep(0.01)
    passes = http.stats()["passes"]
    assert http.get("/health").status_code == 200
    assert is_error(http.get("/health_generate"), 503)["code"] == "paused"
    assert http.stats()["passes"] == passes
    assert found == []
    if mode == "abort":
        http.post("/pause_generation")  # the default ends what waits
    else:
        assert http.post("/continue_generation").json()["status"] == "ok"
    for thread in threads:
        thread.join(120)
    reasons = {reply.json()["meta_info"]["finish_reason"]["type"] for reply in found}
    assert reasons == ({"abort"} if mode == "abort" else {"length"}) or reasons == {"stop"}
    http.post("/continue_generation")
    assert http.golden() == golden
    assert http.get("/get_load").json() == [
        {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    ]
    served.client.idle()


def test_an_unknown_mode_is_refused(served: Served) -> None:
    error = is_error(served.client.post("/pause_generation", json={"mode": "later"}), 400)
    assert "later" in error["message"]


def test_sessions_are_for_every_key_and_pauses_for_the_admin(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = Config.of(api_key="ordinary", admin_api_key="topmost")
    with serve_text(tmp_path_factory.mktemp("keyed"), config) as server:
        headers = {"Authorization": "Bearer ordinary"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60) as http:
            number = http.post("/open_session").json()
            assert http.post("/close_session", json={"session_id": number}).status_code == 200
            for path in ("/pause_generation", "/continue_generation"):
                assert http.post(path).status_code == 403
            assert http.get("/get_load").status_code == 403
