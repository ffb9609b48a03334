"""A launched server over two ranks: whatever ends one, requests end, the engine comes back, and
nothing is left running."""

from __future__ import annotations

import concurrent.futures
import json
import random
import signal
import socket
import time
from pathlib import Path

import httpx
import psutil
import pytest
from helpers.launched import Server, client_of, gone, launched, toy_model
from helpers.seeds import LONG as LONG_RUN

BODY = {"max_new_tokens": 900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*toy_model(tmp_path_factory.mktemp("toy")), "--max-total-tokens", "20000"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of this test's servers."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def ranks_of(server: Server) -> list[psutil.Process]:
    """The processes of the ranks, in their order."""
    lines = [(child.cmdline(), child) for child in server.engine().children()]
    ours = [(line[-1], child) for line, child in lines if "sglang.srt.ranks.rank" in line]
    found = [(json.loads(start)["rank"], child) for start, child in ours]
    return [child for _, child in sorted(found, key=lambda pair: pair[0])]


def stream(url: str) -> str:
    """The text of a stream."""
    body = {"text": "a", "sampling_params": BODY, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as reply:
        lines = [line for line in reply.iter_lines() if "{" in line]
    return str(json.loads(lines[-1].removeprefix("data: "))["text"])


def whole(url: str) -> str:
    body = {"text": "b", "sampling_params": BODY}
    return str(httpx.post(f"{url}/generate", json=body, timeout=60).json()["text"])


def wait_for(http: object, status: int) -> None:
    deadline = time.monotonic() + 60
    while http.get("/health").status_code != status:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def faults_of(r: random.Random) -> list[tuple[signal.Signals, int]]:
    """Signals, and the ranks that get them: two, or fifty where all seeds run."""
    more = 48 if LONG_RUN else 0
    sampled = [(r.choice((signal.SIGKILL, signal.SIGSTOP)), r.randrange(2)) for _ in range(more)]
    return [(signal.SIGKILL, 1), (signal.SIGSTOP, 0), *sampled]


@pytest.mark.timeout(1800 if LONG_RUN else 60)
@pytest.mark.parametrize("layout", ["--tp-size", "--pp-size"] if LONG_RUN else ["--tp-size"])
def test_seeded_faults_of_ranks(layout: str, toy: list[str], alone: Path) -> None:
    """Ranks are killed or stopped, at a random moment of two generations, which go on with the next
    engine's ranks."""
    r = random.Random(20)
    faults = faults_of(r)
    flags = [layout, "2", "--max-engine-restarts", "100"]
    with launched([*toy, *flags]) as server, client_of(server) as http:
        before, ended = http.golden(), []
        texts = stream(server.url), whole(server.url)
        for number, rank in faults:
            ended += ranks_of(server)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                streamed = pool.submit(stream, server.url)
                plain = pool.submit(whole, server.url)
                while http.stats()["running"] < 2:
                    time.sleep(0.02)
                time.sleep(0.2 * r.random())
                ended[rank - 2].send_signal(number)
                wait_for(http, 503)
                gone(ended[-2:])
                wait_for(http, 200)
                assert (streamed.result(), plain.result()) == texts
            assert http.golden() == before
            http.idle()
        ended += ranks_of(server)
        server.process.terminate()
        assert server.wait_end() == 0
        gone(ended)
        errors = server.errors()
        for text in ("rank 1 (process", "ended by signal SIGKILL", "was stopped from outside"):
            assert text in errors
        assert "Traceback" not in errors
    assert not [path for path in alone.iterdir() if path.name.startswith("sglang-")]


def test_a_stopped_rank_ends_with_an_engine_that_is_killed(toy: list[str]) -> None:
    with launched([*toy, "--pp-size", "2", "--max-engine-restarts", "0"]) as server:
        ranks = ranks_of(server)
        ranks[1].suspend()
        server.engine().kill()
        gone(ranks)
        assert server.wait_end() == 1


def test_a_rank_that_ends_without_work_is_noticed(toy: list[str]) -> None:
    with launched([*toy, "--pp-size", "2", "--max-engine-restarts", "0"]) as server:
        ranks = ranks_of(server)
        ranks[0].kill()
        assert server.wait_end() == 1
        gone(ranks)
        assert "rank 0 (process" in server.errors()


def test_a_start_that_cannot_be_ends_with_one_line(toy: list[str], alone: Path) -> None:
    server = Server([*toy, "--tp-size", "3"])
    assert server.wait_end() == 1
    errors = [line for line in server.errors().splitlines() if "INFO" not in line]
    assert errors == [
        "sglang: num_attention_heads is 4, which 3 tensor-parallel ranks cannot share evenly; use "
        "a size that divides it."
    ]
    assert not [path for path in alone.iterdir() if path.name.startswith("sglang-")]


def one_line(server: Server, code: int = 1) -> str:
    """Return the error of a start that cannot be."""
    assert server.wait_end() == code
    (line,) = [line for line in server.errors().splitlines() if " INFO " not in line]
    return line


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def nodes(toy: list[str]) -> list[str]:
    return [*toy, "--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"]


def test_two_machines_serve_one_model(nodes: list[str], alone: Path) -> None:
    """The machines are this one twice. A rank of the second is killed, and both go on."""
    other = Server([*nodes, "--tp-size", "2", "--node-rank", "1"])
    try:
        with launched([*nodes, "--tp-size", "2"]) as server, client_of(server) as http:
            wanted = http.golden()
            (rank,) = psutil.Process(other.process.pid).children()
            rank.kill()
            wait_for(http, 503)
            wait_for(http, 200)
            assert http.golden() == wanted
            (rank,) = psutil.Process(other.process.pid).children()
            server.process.terminate()
            assert server.wait_end() == 0
            gone([rank])
            assert other.process.poll() is None  # a planner may come again
        other.process.terminate()
        assert other.wait_end() == 0
        assert "ended by signal SIGKILL" in other.errors()
    finally:
        other.process.kill()
    assert not [path for path in alone.iterdir() if path.name.startswith("sglang-")]


def test_machines_that_differ_are_refused(nodes: list[str]) -> None:
    other = Server([*nodes, "--pp-size", "2", "--node-rank", "1"])
    server = Server([*nodes, "--tp-size", "2"])
    try:
        for one in (server, other):
            line = one_line(one)
            assert "the ranks differ: tp_size is 2 on node 0 and 1 on node 1" in line
    finally:
        other.process.kill()


def test_a_machine_that_never_comes_and_a_port_in_use(nodes: list[str]) -> None:
    line = one_line(Server([*nodes, "--tp-size", "2", "--dist-timeout", "1"]))
    assert "node 1 has not come: start it with --node-rank 1 --nnodes 2 --dist-init-addr" in line
    assert "within 1 s" in line
    port = int(nodes[-1].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        line = one_line(Server([*nodes, "--tp-size", "2"]))
    assert f"127.0.0.1:{port}, which this machine cannot listen at (Address already in use)" in line
