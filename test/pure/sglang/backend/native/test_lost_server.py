"""Requests of RuntimeEndpoint whose server is lost: they are sent again, and streams go on."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import sglang as sgl
from helpers.http_server import Served, serve_text
from sglang.backend.native.lost_server import MOST_LOSSES, NoServer, ServerLeaves, ServerLoss
from sglang.errors import BackendError, ConnectionFailed

BODY = {
    "text": "the quick", "stream": True, "incremental_streaming_output": False,
    "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0,
}  # fmt: skip
EVENT_END = b"\n\n"
LONG = {"max_new_tokens": 40, "ignore_eos": True, "seed": 3}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "sampled": LONG,
    "penalties": {**LONG, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "stops": {**LONG, "stop": ["zq", "aaaa"], "stop_token_ids": [77]},
}


class Between(socketserver.BaseRequestHandler):
    """One connection: bytes there and back, until the server's turn to be lost."""

    server: CutNetwork
    generating, seen = False, b""  # state of one request

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            request = threading.Thread(target=self._ask, args=(there,))
            request.start()
            self._answer(there)
            for end in (there, self.request):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            request.join()

    def _ask(self, there: socket.socket) -> None:
        with suppress(OSError):
            while data := self.request.recv(1 << 16):
                if data.startswith((b"GET", b"POST")):
                    self.generating, self.seen = data.startswith(b"POST /generate"), b""
                    if self.generating and self.server.refusals:
                        self.request.sendall(self.server.refusals.pop(0))
                        continue
                there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)

    def _answer(self, there: socket.socket) -> None:
        """Ends with the event behind which the connection is cut."""
        with suppress(OSError):
            while data := there.recv(1 << 10):
                cuts = self.server.cuts
                before = self.seen.count(EVENT_END)
                self.seen += data
                after = self.seen.count(EVENT_END)
                if cuts and self.generating and after >= cuts[0]:
                    self.request.sendall(b"".join(self._events(data)[: cuts.pop(0) - before]))
                    self.server.lost += 1
                    return
                self.request.sendall(data)

    def _events(self, data: bytes) -> list[bytes]:
        *whole, _ = data.split(EVENT_END)
        return [event + EVENT_END for event in whole]


class CutNetwork(socketserver.ThreadingTCPServer):
    """A way to a server, on which answers of /generate are cut.

    Attributes:
        cuts: for each answer that is cut, the number of its events that arrive.
        lost: number of answers that were cut.
        refusals: answers to the next requests, which the server does not see.
    """

    daemon_threads = allow_reuse_address = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Between)
        self.port, self.cuts, self.lost = port, list[int](), 0
        self.refusals: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), seconds=0.001) as server:
        yield server


@pytest.fixture
def network(served: Served) -> Iterator[CutNetwork]:
    with CutNetwork(served.client.base_url.port or 0) as network:
        thread = threading.Thread(target=network.serve_forever, args=(0.01,))
        thread.start()
        yield network
        network.shutdown()
        thread.join()
    served.client.idle()


def events(endpoint: sgl.RuntimeEndpoint, body: dict[str, Any], twin: str) -> list[dict[str, Any]]:
    if twin == "threads":
        return list(endpoint.call_stream(body))

    async def main() -> list[dict[str, Any]]:
        return [event async for event in endpoint.acall_stream(body)]

    return asyncio.run(main())


def facts(event: dict[str, Any]) -> Any:
    """All but times, and what depends on the cache."""
    changing = ("e2e_latency", "cached_tokens", "forward_passes", "forced_tokens")
    meta = {name: value for name, value in event["meta_info"].items() if name not in changing}
    return event["text"], event["output_ids"], meta


@pytest.mark.parametrize("twin", ["threads", "loop"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_stream_goes_on_where_its_server_is_lost(
    served: Served, network: CutNetwork, sampling: str, twin: str
) -> None:
    """Once or twice, before the first event, and behind the last one too."""
    body = {**BODY, "rid": "r", "sampling_params": SAMPLINGS[sampling]}
    every = events(sgl.RuntimeEndpoint(served.url), body, twin)
    endpoint = sgl.RuntimeEndpoint(network.url)
    for cuts in ([0], [1], [3, 5], [17, 0], [len(every)]):
        network.cuts, network.lost = list(cuts), 0
        found = events(endpoint, body, twin)
        assert facts(found[-1]) == facts(every[-1])
        # A busy server joins events: then fewer come, and none is the last that is cut behind.
        assert network.lost == len(cuts) or cuts == [len(every)]
        texts = [event["text"] for event in found]
        assert all(new.startswith(old) for old, new in pairwise(texts))


def test_a_program_notices_nothing(served: Served, network: CutNetwork) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "go " + sgl.gen("x", 30, seed=5, ignore_eos=True)
        s += " and" + sgl.gen("y", 10, seed=6, ignore_eos=True)

    whole = program.run(backend=sgl.RuntimeEndpoint(served.url))
    endpoint = sgl.RuntimeEndpoint(network.url)
    for stream in (True, False):
        network.cuts = [4 if stream else 0]
        state = program.run(backend=endpoint, stream=stream)
        assert "".join(state.text_iter()) == whole.text()
        network.cuts = [0]
        assert asyncio.run(program.arun(backend=endpoint)).text() == whole.text()
    assert network.lost == 4


def test_a_request_may_lose_so_many_servers(network: CutNetwork) -> None:
    endpoint = sgl.RuntimeEndpoint(network.url)
    network.cuts = [2] * (MOST_LOSSES + 2)
    body = {**BODY, "sampling_params": LONG}
    with pytest.raises(ConnectionFailed, match=f"in {MOST_LOSSES + 1} servers that were lost"):
        list(endpoint.call_stream(body))
    assert network.lost == MOST_LOSSES + 1


def refusal_of(status: int, *headers: str) -> bytes:
    body = b'{"error": {"message": "later", "code": "engine_lost"}}'
    lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


SOON = "Retry-After: 0"


@pytest.mark.parametrize("status", [503, 429])
def test_what_is_refused_for_the_moment_is_sent_again(
    served: Served, network: CutNetwork, status: int
) -> None:
    body = {"text": "the quick", "sampling_params": {**LONG, "max_new_tokens": 4}}
    endpoint, many = sgl.RuntimeEndpoint(network.url), 2 * MOST_LOSSES + 1
    whole = endpoint.call(body)["text"]
    for ask in (
        lambda: endpoint.call(body)["text"],
        lambda: asyncio.run(endpoint.acall(body))["text"],
        lambda: events(endpoint, {**body, "stream": True}, "threads")[-1]["text"],
        lambda: events(endpoint, {**body, "stream": True}, "loop")[-1]["text"],
    ):
        network.refusals = [refusal_of(status, SOON)] * many
        assert ask() == whole
        assert network.refusals == []


@pytest.mark.parametrize(
    ("refusal", "seconds"),
    [
        (refusal_of(503), 30.0),
        (refusal_of(500, SOON), 30.0),
        (refusal_of(429, "Retry-After: 3600"), 30.0),
        (refusal_of(503, SOON), 0.0),
    ],
    ids=["not for the moment", "an error", "too long", "off"],
)
def test_a_refusal_that_stays_is_an_error(
    network: CutNetwork, refusal: bytes, seconds: float
) -> None:
    network.refusals = [refusal]
    with pytest.raises(BackendError, match="later"):
        sgl.RuntimeEndpoint(network.url, resume_seconds=seconds).call({"text": "a"})
    assert network.refusals == []


@pytest.mark.parametrize("field", [{"park": {}}, {"sampling_params": {**LONG, "n": 2}}])
def test_what_cannot_go_on_fails_at_once(network: CutNetwork, field: dict[str, Any]) -> None:
    """Several texts are not requested again in part."""
    network.cuts = [2]
    endpoint = sgl.RuntimeEndpoint(network.url)
    with pytest.raises(ConnectionFailed, match="was lost"):
        list(endpoint.call_stream({**BODY, "sampling_params": LONG, **field}))


def test_another_model_does_not_go_on_with_the_text(network: CutNetwork) -> None:
    endpoint = sgl.RuntimeEndpoint(network.url)
    endpoint.model_info = {"model_path": "other"}
    network.cuts = [2]
    with pytest.raises(BackendError, match="serves toy now, and a text of other cannot go on"):
        list(endpoint.call_stream({**BODY, "sampling_params": LONG}))


def test_a_server_that_does_not_come_back_is_told_in_time(network: CutNetwork) -> None:
    endpoint = sgl.RuntimeEndpoint(network.url, resume_seconds=0.2)
    network.server_close()
    endpoint._http.close()
    with pytest.raises(NoServer, match="no runtime answers"):
        endpoint.call({"text": "a"})
    endpoint.resume_seconds = 0
    with pytest.raises(NoServer, match="no runtime answers"):
        asyncio.run(endpoint.acall({"text": "a"}))


# -- the rule alone --------------------------------------------------------------------------------


def test_a_server_that_leaves_counts_as_no_loss() -> None:
    loss = ServerLoss({"text": "a"}, 60)
    pauses = [loss.pause(ServerLeaves("later")) for _ in range(3 * MOST_LOSSES)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    assert not loss.model_matters
    with pytest.raises(BackendError, match="bad"):
        loss.pause(BackendError("bad", 400))


def test_without_token_ids_nothing_can_go_on() -> None:
    loss = ServerLoss({"text": "a"}, 60)
    loss.grown({"text": "b", "meta_info": {}})
    with pytest.raises(ConnectionFailed, match="cut"):
        loss.pause(ConnectionFailed("cut"))
