"""The load generator against a fake server: every protocol, errors, concurrency, comparison."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from helpers.fake_endpoint import FakeEndpoint
from sglang.srt.commands.bench.load_client import Http, HttpError

from benchmark.serving.__main__ import main

SMALL = ["--prefix-len", "40", "--question-len", "8", "--output-len", "5", "--num-requests", "12"]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("backend", ["sglang", "openai", "openai-chat"])
@pytest.mark.parametrize("piece", [0, 3])
def test_a_run_reports_what_the_server_did(
    backend: str, piece: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    with FakeEndpoint(piece=piece, pause=0.002) as server:
        status = main(
            ["--backend", backend, "--base-url", server.url, *SMALL, "--flush-cache",
             "--output-file", str(out), "--max-concurrency", "3"]
        )  # fmt: skip
        assert server.flushes == 1
        assert server.most_under_way == 3
        assert server.connections <= 4  # connections are kept
    assert status == 0, capsys.readouterr().err
    (run,) = lines(out)
    assert (run["completed"], run["failed"]) == (12, 0)
    assert (run["prompt_tokens"], run["output_tokens"]) == (12 * 48, 12 * 5)
    assert run["cached_tokens"] == 11 * 40
    assert run["ttft_ms"]["p99"] > 0  # type: ignore[index]
    assert run["counted"]["computed_tokens"] == 12 * 53  # type: ignore[index]
    assert "cache hit rate" in capsys.readouterr().out


def test_turns_follow_one_another_and_bring_their_history(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    with FakeEndpoint() as server:
        arguments = ["--base-url", server.url, "--workload", "multi-turn", "--num-requests", "6",
                     "--turns", "3", "--prefix-len", "10", "--question-len", "4",
                     "--output-len", "2", "--warmup-requests", "0"]  # fmt: skip
        assert main([*arguments, "--output-file", str(out)]) == 0
        prompts = sorted((body["input_ids"] for body in server.bodies), key=len)
        assert [len(prompt) for prompt in prompts] == [14, 14, 20, 20, 26, 26]
        for longer in prompts[2:]:
            assert any(longer[: len(shorter)] == shorter for shorter in prompts[:-2])
        assert main([*arguments, "--backend", "openai-chat"]) == 0
        roles = [[part["role"] for part in body["messages"]] for body in server.bodies[6:]]
        assert sorted(map(len, roles)) == [1, 1, 3, 3, 5, 5]
        assert max(roles, key=len) == ["user", "assistant", "user", "assistant", "user"]
        # Compared with a protocol that answers in text, everything is sent as text.
        assert main([*arguments, "--compare", "openai"]) == 0
        assert all("text" in body or isinstance(body["prompt"], str) for body in server.bodies[12:])
    # The second and third turn find all that was said before.
    assert lines(out)[0]["cached_tokens"] >= 2 * (16 + 22)  # type: ignore[operator]


def test_poisson_arrivals_spread_the_requests(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    with FakeEndpoint() as server:
        rate = ["--request-rate", "40", "--output-file", str(out)]
        assert main(["--base-url", server.url, *SMALL, *rate]) == 0
    (run,) = lines(out)
    # Twelve requests at 40 a second: 0.18 s or more for this seed, whatever the machine.
    assert run["seconds"] > 0.15  # type: ignore[operator]
    assert run["options"]["request_rate"] == "40.0"  # type: ignore[index]


def test_equal_servers_compare_equal(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint() as a, FakeEndpoint() as b:
        arguments = ["--base-url", a.url, "--compare", f"openai@{b.url}", *SMALL]
        assert main([*arguments, "--rounds", "2"]) == 0
        assert len(a.bodies) == len(b.bodies) == 4 + 2 * 12
    out = capsys.readouterr().out
    assert "12 of 12 answers equal (by text)" in out
    assert "as fast as openai@" in out


def test_a_server_that_differs_fails_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint() as a, FakeEndpoint(shift=1) as b:
        assert main(["--base-url", a.url, "--compare", f"sglang@{b.url}", *SMALL]) == 1
    assert "0 of 12 answers equal (by ids)" in capsys.readouterr().out


def test_short_answers_and_refusals_are_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint(short=1) as server:
        assert main(["--base-url", server.url, *SMALL]) == 1
        assert "4 tokens drawn, 5 asked" in capsys.readouterr().err
        assert main(["--base-url", server.url, *SMALL, "--stop-at-eos"]) == 0
    with FakeEndpoint(busy=4) as server:
        assert main(["--base-url", server.url, *SMALL, "--warmup-requests", "0"]) == 1
        shown = capsys.readouterr()
        assert "9 / 3" in shown.out
        assert "429: the queue is full" in shown.err


def test_a_request_that_takes_too_long_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEndpoint(pause=0.2) as server:
        arguments = ["--base-url", server.url, *SMALL, "--warmup-requests", "0"]
        assert main([*arguments, "--timeout", "0.1"]) == 1
    assert "no answer within 0.1 s" in capsys.readouterr().err


def test_nothing_listening_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9", *SMALL]) == 2
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err


def test_a_connection_that_the_server_has_closed_is_replaced() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()  # though the answer did not say so

    async def twice() -> list[object]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answers = [await client.json("GET", "/x")]
        await asyncio.sleep(0.01)
        answers.append(await client.json("GET", "/x"))
        await client.close()
        server.close()
        return answers

    assert asyncio.run(twice()) == [{}, {}]


def test_a_stream_that_is_cut_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Http(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await client.json("GET", "/x")
        finally:
            server.close()

    with pytest.raises(HttpError, match="cut"):
        asyncio.run(ask())
