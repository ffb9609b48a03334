"""Deliberate prompting and agents as inferlets: the texts of sequential calls, each prefix once."""

from __future__ import annotations

import http.server
import json
import runpy
import threading
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers.inferlet_reference import Reference
from helpers.inferlet_runs import EnginePrograms, example
from helpers.paths import ROOT
from sglang.srt.inferlet.program_limits import TRUSTED, Rights
from sglang.srt.tokenizer.tokenizer import EMBEDDED

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def programs() -> Iterator[EnginePrograms]:
    found = EnginePrograms(dtype="float32", max_total_tokens=16384)
    yield found
    found.engine.shutdown()


def globals_of(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "inferlets" / f"{name}.py"))


def test_skeleton_of_thought_is_sequential_calls(
    programs: EnginePrograms, reference: Reference
) -> None:
    question = "User: How does one walk along a river?\nAssistant:"
    found = programs.one(example("skeleton_of_thought"), question, "2", "5", "7")
    computed = programs.tokens
    skeleton, others = [question], 3  # a fork computes the last token for itself
    for number, (point, text) in enumerate(found, 1):
        heading = reference.completed([*skeleton, f"\n{number}."], 5, "\n")
        assert point == heading.strip()
        for piece in (f"\n{number}.", f"\nPoint {number}: {point}."):
            others += len(reference.tokenizer.encode(piece, False))
        skeleton += [f"\n{number}.", heading]
        alone = reference.completed([question, f"\nPoint {number}: {point}."], 7, "\n")
        assert text == alone.strip()
    generated = 2 * (5 + 7)
    assert computed <= len(reference.encode(question)) + others + generated


def test_graph_of_thought_is_sequential_calls(
    programs: EnginePrograms, reference: Reference
) -> None:
    task = globals_of("graph_of_thought")["TASK"]
    parts = ["The river is wide.", "The farmer walks.", "His dog is old."]
    found = programs.one(example("graph_of_thought"), "6", *parts)

    def think(text: str) -> str:
        return reference.completed([task, f"Text: {text}\nSummary:"], 6, "\n").strip()

    first, second, third = map(think, parts)
    assert found == think(f"{think(f'{first} {second}')} {third}")


def test_recursion_of_thought_is_sequential_calls(
    programs: EnginePrograms, reference: Reference
) -> None:
    import re

    task = globals_of("recursion_of_thought")["TASK"]
    found = programs.one(example("recursion_of_thought"), "5", "5", "3", "4", "1", "6", "2")
    passes = programs.passes

    def solve(numbers: list[str]) -> str:
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) > 2:
            half = len(numbers) // 2
            numbers = [solve(numbers[:half]), solve(numbers[half:])]
        answer = reference.completed([task, f"{' + '.join(numbers)} ="], 5, "\n")
        digits = re.search(r"-?\d+", answer)
        return digits[0] if digits else "0"

    assert found == solve(["3", "4", "1", "6", "2"])
    assert passes <= 3 * 5 + 4  # three levels of at most five tokens, side by side


def test_tree_of_thought_is_a_sequential_search(
    programs: EnginePrograms, reference: Reference
) -> None:
    parts = globals_of("tree_of_thought")
    task, apply, shown = parts["TASK"], parts["apply"], parts["shown"]
    assert apply([Fraction(4), Fraction(6)], " 4 * 6 = 24") == [24]
    assert apply([Fraction(4), Fraction(6)], " 5 * 6 = 24") is None
    assert apply([Fraction(4), Fraction(0)], " 4 / 0") is None
    found = programs.one(example("tree_of_thought"), "24", "3", "2", "4", "6")
    prompt = f"Numbers: {shown([Fraction(4), Fraction(6)])}\nStep:"
    tokens = reference.encode(task) + list(reference.tokenizer.encode(prompt, False))
    first = reference.logits(tokens)[-1].topk(3).indices.tolist()
    legal = []
    for token in first:
        rest: list[int] = [token]
        while len(rest) < 16 and "\n" not in reference.tokenizer.decode(rest[1:]):
            new = reference.greedy(tokens + rest, 1)
            if not new:
                break
            rest += new
        line = reference.tokenizer.decode(rest).split("\n")[0]
        left = apply([Fraction(4), Fraction(6)], line)
        if left is not None:
            legal.append((line.strip(), left))
    assert found["proposed"] == 3
    assert found["steps"] == [legal[0][0]] if legal else found["steps"] == []
    assert found["solved"] == any(left == [24] for _, left in legal)


class Tool(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        [query] = parse_qs(urlsplit(self.path).query).get("q", [""])
        body = f"about {query}".encode()
        self.server.seen.append(query)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def tool() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_react_computes_new_tokens_alone(
    programs: EnginePrograms, reference: Reference, tool: Any
) -> None:
    url = f"http://127.0.0.1:{tool.server_port}/search"
    rights = Rights(local=(f"127.0.0.1:{tool.server_port}",))
    question = "How many legs has a dog?"
    found = programs.one(example("agent_react"), url, question, "3", "10", rights=rights)
    assert 1 <= found["calls"] == len(tool.seen)
    assert f"See: about {tool.seen[0]}\n" in found["text"]
    assert programs.tokens == found["tokens"] - 1 or programs.tokens == found["tokens"]
    task = globals_of("agent_react")["TASK"]
    first = reference.completed([f"{task}Question: {question}\nAct:"], 10, "\n")
    assert tool.seen[0] == first.split("\n")[0].strip()


def test_http_is_denied_by_default(programs: EnginePrograms, tool: Any) -> None:
    url = f"http://127.0.0.1:{tool.server_port}/"

    async def main(ctx: Any) -> Any:
        try:
            return await ctx.http_get(url)
        except Exception as error:
            return [error.code, str(error)]  # type: ignore[attr-defined]

    for rights in (Rights(), TRUSTED, Rights(hosts=("127.0.0.1",))):
        code, message = programs.one(main, rights=rights)
        assert code == "denied", message
        assert "127.0.0.1" in message

    async def post(ctx: Any) -> Any:
        return await ctx.http_post(url, "abc")

    local = Rights(local=(f"127.0.0.1:{tool.server_port}",))
    assert programs.one(post, rights=local) == "cba"


def test_codeact_runs_arithmetic_and_refuses_the_rest(
    programs: EnginePrograms, reference: Reference
) -> None:
    parts = globals_of("agent_codeact")
    act, task = parts["act"], parts["TASK"]
    assert act(" 2 * (3 + 4)") == "14"
    assert act("max(2, min(7, 5))") == "5"
    for code in ("__import__('os')", "().__class__", "open('x')", "9 ** 9", "[x for x in (1,)]"):
        assert "not" in act(code)
    found = programs.one(example("agent_codeact"), "", "2", "8")
    first = reference.completed([task, ">>>"], 8, "\n")
    assert found[0] == (first.split("\n")[0], act(first.split("\n")[0]))
    assert len(found) == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_swarm_shares_tasks(
    programs: EnginePrograms, reference: Reference, order: tuple[int, ...]
) -> None:
    main = example("agent_swarm")
    tasks = ["count to three", "name a river", "say a colour"]
    roles = [["leader", "5", "2", *tasks], ["worker", "5", "0"], ["worker", "5", "1"]]

    def with_role(index: int) -> Any:
        async def run(ctx: Any) -> Any:
            ctx.get_arg = lambda: roles[index]
            return await main(ctx)

        return run

    results = programs.run(*(with_role(index) for index in order))
    assert programs.errors == ["", "", ""]
    by_role = dict(zip(order, results))
    assert sorted(by_role[1] + by_role[2]) == sorted(tasks)
    role = globals_of("agent_swarm")["ROLE"]
    for task, answer in zip(tasks, by_role[0]):
        number = 0 if task in by_role[1] else 1
        parts = [role.format(number=number), f"Task: {task}\nAnswer:"]
        assert answer == reference.completed(parts, 5, "\n").strip()
    assert json.dumps(by_role[0])
