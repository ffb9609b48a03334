"""A server that runs uploaded programs: routes, tenants, limits, the death of the sandbox."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sglang as sgl

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")
pytest.importorskip("componentize_py", reason="the extra [inferlet] is not installed")

from helpers.launched import Server, best_model
from helpers.paths import ROOT
from sglang.backend.engine.inferlets import InferletError
from sglang.errors import BadRequest, NotFound, PermissionDenied
from sglang.srt.cli import main as command
from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT
from sglang.srt.inferlet.host.runner_build import prebuilt, runner
from sglang.srt.tokenizer.tokenizer import EMBEDDED

pytestmark = pytest.mark.timeout(300)  # the runner may have to be built
EXAMPLES = ROOT / "examples" / "inferlets"
MODULE = EXAMPLES / "wasm" / "completion.wasm"
KEYS = [
    {"name": "ann", "key": "ann", "inferlets": {"store": True}},
    {"name": "bob", "key": "bob", "inferlets": {}},
    {"name": "eve", "key": "eve"},
    {"name": "root", "key": "root", "admin": True},
]
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("inferlets")
    (directory / "keys").write_text(json.dumps(KEYS))
    runner()
    flags = ["--enable-inferlets", "--max-total-tokens", "16384", "--inferlet-max-runs", "20"]
    flags += ["--api-keys-file", str(directory / "keys"), *best_model(directory)]
    started = Server(flags)
    try:
        started.wait_ready(120)
        yield started
    finally:
        started.process.terminate()
        assert started.wait_end() == 0


def client(server: Server, key: str = "ann") -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


@pytest.fixture
def ann(server: Server) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


def put(ann: httpx.Client, source: str) -> str:
    reply = ann.post("/v1/inferlets", json={"source": source})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def start(ann: httpx.Client, source: str, **fields: Any) -> str:
    reply = ann.post(f"/v1/inferlets/{put(ann, source)}/runs", json=fields)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def events_of(reply: httpx.Response) -> Events:
    assert reply.status_code == 200, reply.text
    lines = reply.text.splitlines()
    found: Events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["number"] for event in found] == [
        found[0]["number"] + step for step in range(len(found))
    ]
    return found


def events(ann: httpx.Client, run: str, after: int = -1) -> Events:
    more = f"&starting_after={after}" if after >= 0 else ""
    return events_of(ann.get(f"/v1/runs/{run}?stream=true{more}"))


def error_of(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["message"])


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    made = sgl.Engine(max_total_tokens=16384)
    yield made
    made.shutdown()


SENTENCE = "The weather report says that tomorrow will be a fine day for walking along the river,"
REPEATS = '{"a": 1, "b": 2, "c": 3,'
# Techniques of the paper that need no other server, with their arguments.
TECHNIQUES = {
    "text_completion": [SENTENCE, "12"], "prefix_caching": ["a name", SENTENCE, " and the", "6"],
    "beam_search": [SENTENCE, "2", "8"], "ngram_speculation": [REPEATS, "24"],
    "jacobi_decoding": [REPEATS, "24", "6"], "attention_sink": [], "windowed_attention": [],
    "hierarchical_attention": [], "modular_caching": [], "ebnf_decoding": [],
    "output_validation": [], "watermarking": [], "tree_of_thought": [],
    "recursion_of_thought": [], "graph_of_thought": [], "skeleton_of_thought": [],
    "prefix_tree": [],
}  # fmt: skip


@pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)
@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_gives_the_same_in_process_and_in_a_sandbox(
    ann: httpx.Client, engine: sgl.Engine, name: str
) -> None:
    path = EXAMPLES / f"{name}.py"
    value = engine.inferlet(runpy.run_path(str(path))["main"], *TECHNIQUES[name]).result(60)
    found = events(ann, start(ann, path.read_text(), arguments=TECHNIQUES[name]))
    assert found[-2].get("value") == json.loads(json.dumps(value)), found[-2]


@pytest.mark.skipif(
    prebuilt(recipe=JAVASCRIPT) is None,
    reason="there is no runner of JavaScript; `sglang inferlet runner` builds it",
)
@pytest.mark.parametrize("name", ["text_completion", "beam_search"])
def test_an_example_in_javascript_gives_the_same(ann: httpx.Client, name: str) -> None:
    values = []
    for path in (EXAMPLES / f"{name}.py", EXAMPLES / "js" / f"{name}.js"):
        field = "source" if path.suffix == ".py" else "javascript"
        program = ann.post("/v1/inferlets", json={field: path.read_text()}).json()
        run = {"arguments": TECHNIQUES[name], "stream": True}
        values.append(events_of(ann.post(f"/v1/inferlets/{program['id']}/runs", json=run))[-2])
    assert program["kind"] == "javascript"
    assert values[0]["value"] == values[1]["value"]


TALK = """
async def main(ctx):
    print("begun")
    ctx.send("ready " + " ".join(ctx.get_arg()))
    done = await ctx.generate("Hello", max_new_tokens=8, temperature=0)
    word, blob = await ctx.receive(), await ctx.receive_blob()
    return {"text": done["text"], "word": word, "blob": blob.hex()}
"""


def test_a_program_talks_with_its_client_and_the_model(ann: httpx.Client) -> None:
    run = start(ann, TALK, arguments=["a", "b"])
    assert ann.get(f"/v1/runs/{run}").json()["status"] == "running"
    assert ann.post(f"/v1/runs/{run}/messages", json={"text": "mail"}).status_code == 200
    sent = base64.b64encode(b"\x00\xff").decode()
    assert ann.post(f"/v1/runs/{run}/messages", json={"data": sent}).status_code == 200
    found = events(ann, run)
    assert [event["type"] for event in found] == ["started", "log", "message", "result", "usage"]
    assert found[2]["text"] == "ready a b"
    plain = {"text": "Hello", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    text = ann.post("/generate", json=plain).json()["text"]
    assert found[3]["value"] == {"text": text, "word": "mail", "blob": "00ff"}
    assert found[4]["turns"] == 4
    assert events(ann, run, after=2) == found[3:]
    shown = ann.get(f"/v1/runs/{run}").json()
    assert (shown["status"], shown["result"]) == ("completed", found[3]["value"])
    late = ann.post(f"/v1/runs/{run}/messages", json={"text": ""})
    assert "has ended" in error_of(late, 409)


def test_the_committed_module_runs(ann: httpx.Client) -> None:
    data = MODULE.read_bytes()
    body = {"wasm": base64.b64encode(data).decode(), "sha256": hashlib.sha256(data).hexdigest()}
    program = ann.post("/v1/inferlets", json=body).json()
    assert (program["id"], program["kind"], program["bytes"]) == (body["sha256"], "module", 387)
    reply = ann.post(f"/v1/inferlets/{program['id']}/runs", json={"stream": True})
    [answer] = events_of(reply)[1]["value"]
    assert len(answer["value"]["tokens"]) == 8


def test_what_is_no_program_is_refused_with_the_reason(ann: httpx.Client) -> None:
    for body, reason in (
        ({"wasm": base64.b64encode(b"#!/bin/sh").decode()}, "WebAssembly begins with"),
        ({"wasm": "AGFzbQEAAAA="}, "exports no memory"),
        ({"wasm": "AGFzbQ"}, "wasm is not valid base64"),
        ({"source": "x", "sha256": "0" * 64}, "The program has the SHA-256"),
        ({"source": "x", "wasm": "x"}, "one of them"),
        ({"source": "x", "javascript": "x"}, "one of them"),
        ({}, "one of them"),
    ):
        assert reason in error_of(ann.post("/v1/inferlets", json=body), 400)


def test_tenants_see_their_own(server: Server, ann: httpx.Client) -> None:
    program = put(ann, "async def main(ctx):\n    await ctx.receive()\n")
    run = start(ann, "async def main(ctx):\n    await ctx.receive()\n")
    with client(server, "bob") as bob:
        assert bob.get("/v1/inferlets").json()["data"] == []
        assert bob.get("/v1/runs").json()["data"] == []
        for reply in (
            bob.post(f"/v1/inferlets/{program}/runs", json={}),
            bob.delete(f"/v1/inferlets/{program}"),
            bob.get(f"/v1/runs/{run}"),
            bob.post(f"/v1/runs/{run}/messages", json={"text": "x"}),
            bob.delete(f"/v1/runs/{run}"),
        ):
            error_of(reply, 404)
    assert [one["id"] for one in ann.get("/v1/runs").json()["data"]][-1] == run
    assert ann.delete(f"/v1/runs/{run}").json()["deleted"] is True
    error_of(ann.get(f"/v1/runs/{run}"), 404)
    assert ann.delete(f"/v1/inferlets/{program}").status_code == 200
    error_of(ann.post(f"/v1/inferlets/{program}/runs", json={}), 404)


def test_rights_are_those_of_the_key(server: Server, ann: httpx.Client) -> None:
    with client(server, "eve") as eve:
        assert "may run no inferlets" in error_of(
            eve.post("/v1/inferlets", json={"source": "x"}), 403
        )
    store = "async def main(ctx):\n    ctx.store_set('k', b'v')\n"
    store += "    return (await ctx.store_get('k')).hex()\n"
    run = start(ann, store, store=True)
    assert events(ann, run)[1]["value"] == "76"
    run = start(ann, store)  # not wanted, so not given
    assert "store" in events(ann, run)[1]["message"]
    with client(server, "bob") as bob:
        program = put(bob, store)
        for field, value in (("store", True), ("topics", True), ("hosts", ["example.com"])):
            reply = bob.post(f"/v1/inferlets/{program}/runs", json={field: value})
            assert "grants no" in error_of(reply, 403)


HOSTILE: dict[str, tuple[str, dict[str, float]]] = {
    "turn_cpu": ("async def main(ctx):\n    while True: pass", {"turn_cpu": 0.3}),
    "calls": ("async def main(ctx):\n    for _ in range(99): ctx.send('')", {"calls": 50}),
    "calls_bytes": ("async def main(ctx):\n    return 'x' * 9999", {"calls_bytes": 2000}),
    "backlog": ("async def main(ctx):\n    ctx.send('x' * 9999)\n    await ctx.receive()",
                {"backlog": 2000}),
    "wall": ("async def main(ctx):\n    await ctx.receive()", {"wall": 0.3}),
    "trap": ("async def main(ctx):\n    import os; os._exit(1)", {}),
}  # fmt: skip


@pytest.mark.parametrize("code", HOSTILE)
def test_a_limit_ends_its_run_by_name(ann: httpx.Client, code: str) -> None:
    source, limits = HOSTILE[code]
    found = events(ann, start(ann, source, **limits))
    assert [event["type"] for event in found][-2:] == ["error", "usage"]
    assert found[-2]["message"].startswith(f"{code}: ")
    for name, value in limits.items():
        assert f"{value:g}" in found[-2]["message"] or name == "backlog"
    assert found[-1]["cpu_seconds"] >= (limits["turn_cpu"] if code == "turn_cpu" else 0)


def test_limits_are_bounded_and_runs_are_counted(ann: httpx.Client) -> None:
    program = put(ann, "async def main(ctx):\n    await ctx.receive()\n")
    path = f"/v1/inferlets/{program}/runs"
    assert "turn_cpu" in error_of(ann.post(path, json={"turn_cpu": 11}), 400)
    assert "no field 'turncpu'" in error_of(ann.post(path, json={"turncpu": 1}), 400)
    replies = [ann.post(path, json={}) for _ in range(21)]
    refused = [reply for reply in replies if reply.status_code != 200]
    assert "20 runs already (--inferlet-max-runs)" in error_of(refused[0], 429)
    for run in ann.get("/v1/runs").json()["data"]:
        ann.delete(f"/v1/runs/{run['id']}")


def host_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    [found] = [child for child in children if any("host_child" in w for w in child.cmdline())]
    return found


def test_runs_outlive_the_death_of_the_sandbox(server: Server, ann: httpx.Client) -> None:
    source = """
import random
async def main(ctx):
    heard = []
    for _ in range(3):
        ctx.send(str(random.random()))
        heard.append(await ctx.receive())
    return heard
"""
    run = start(ann, source, seed="s")
    killed = host_of(server)
    for word in ("one", "two", "three"):
        ann.post(f"/v1/runs/{run}/messages", json={"text": word})
        if word == "one":
            os.kill(killed.pid, signal.SIGKILL)
    found = events(ann, run)
    assert found[-2]["value"] == ["one", "two", "three"]
    again = start(ann, source, seed="s")
    for word in ("one", "two", "three"):
        ann.post(f"/v1/runs/{again}/messages", json={"text": word})
    texts = [
        [e["text"] for e in events(ann, one) if e["type"] == "message"] for one in (run, again)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 3
    assert host_of(server).pid != killed.pid


def test_a_stream_beside_a_spinning_program_goes_on(ann: httpx.Client) -> None:
    spin = "async def main(ctx):\n    while True: pass"
    runs = [start(ann, spin, turn_cpu=0.5) for _ in range(2)]
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 32, "temperature": 0}}
    assert ann.post("/generate", json=body).json()["meta_info"]["completion_tokens"] == 32
    for run in runs:
        assert events(ann, run)[1]["message"].startswith("turn_cpu: ")


def test_the_command_line_puts_launches_and_kills(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--url", server.url, "--api-key", "bob"]
    path = tmp_path / "echo.py"
    path.write_text(
        "async def main(ctx):\n    print('log')\n    ctx.send('hi')\n    return ctx.get_arg()\n"
    )
    assert command(["inferlet", "put", *flags, str(path)]) == 0
    program = capsys.readouterr().out.strip()
    assert program == hashlib.sha256(path.read_bytes()).hexdigest()
    assert command(["inferlet", "launch", *flags, program, "--", "a", "--b"]) == 0
    shown = capsys.readouterr()
    assert shown.out == 'hi\n["a", "--b"]\n'
    run, line = shown.err.split()
    assert line == "log"
    assert command(["inferlet", "launch", program, *flags, "--limit", "nope=1"]) == 1
    assert "There is no field 'nope'; known are turn_cpu," in capsys.readouterr().err
    assert command(["inferlet", "logs", *flags, "--after", "1", run]) == 0
    assert capsys.readouterr().out == 'hi\n["a", "--b"]\n'
    assert command(["inferlet", "list", *flags]) == 0
    listed = capsys.readouterr().out
    assert all(one in listed for one in (program, run, "echo.py"))
    assert command(["inferlet", "kill", *flags, run]) == 0
    assert command(["inferlet", "logs", *flags, run]) == 1
    assert "There is no run" in capsys.readouterr().err


def test_a_client_in_python_puts_launches_talks_and_kills(server: Server, tmp_path: Path) -> None:
    ann, bob = (sgl.InferletClient(server.url, key) for key in ("ann", "bob"))
    (tmp_path / "talk.py").write_text(TALK)
    program = ann.put(tmp_path / "talk.py")
    assert ann.put(TALK, "again") == program == hashlib.sha256(TALK.encode()).hexdigest()
    assert (program, "again") in [(one["id"], one["name"]) for one in ann.programs()]
    assert ann.put(MODULE.read_bytes()) == hashlib.sha256(MODULE.read_bytes()).hexdigest()
    run = ann.launch(program, "a", "b", turn_cpu=1)
    first = []
    for event in ann.events(run):  # goes away in the middle
        first.append(event)
        if event["type"] == "message":
            break
    assert (first[-1]["text"], ann.run(run)["status"]) == ("ready a b", "running")
    for stranger in (bob.run, bob.kill, bob.result, lambda run: bob.send(run, "x")):
        with pytest.raises(NotFound, match="There is no run"):
            stranger(run)
    again = sgl.InferletClient(f"{server.url}/v1", "ann")  # another client of the key
    again.send(run, "mail")
    again.send(run, b"\x00\xff")
    result = again.result(run)
    assert (result["word"], result["blob"]) == ("mail", "00ff")
    rest = list(again.events(run, first[-1]["number"]))
    assert [event["type"] for event in rest] == ["result", "usage"]
    assert ann.runs()[-1] == ann.run(run) == again.run(run)
    with pytest.raises(BadRequest, match="none follows"):
        next(ann.events(run, rest[-1]["number"]))
    with pytest.raises(InferletError, match="ZeroDivisionError"):
        ann.result(ann.launch(ann.put("async def main(ctx):\n    1 / 0")))
    with pytest.raises(InferletError, match=r"^wall: "):
        ann.result(ann.launch(program, wall=0.3))
    ann.kill(run)
    ann.forget(program)
    for gone in (lambda: ann.run(run), lambda: ann.launch(program)):
        with pytest.raises(NotFound, match="There is no"):
            gone()
    with pytest.raises(PermissionDenied, match="may run no inferlets"):
        sgl.InferletClient(server.url, "eve").put("x")


def test_metrics_count_runs(server: Server, ann: httpx.Client) -> None:
    def numbers() -> dict[str, float]:
        with client(server, "root") as root:
            lines = root.get("/metrics").text.splitlines()
        pairs = [line.rpartition(" ") for line in lines if "inferlet" in line and line[0] != "#"]
        return {name.partition("{")[0].removeprefix("sglang:"): float(v) for name, _, v in pairs}

    before = numbers()
    events(ann, start(ann, "async def main(ctx):\n    1 / 0"))
    events(ann, start(ann, "async def main(ctx):\n    await ctx.now()"))
    events(ann, start(ann, HOSTILE["turn_cpu"][0], turn_cpu=0.3))
    after = numbers()
    change = {name: after[name] - before[name] for name in after}
    assert change["inferlet_runs_total"] == 3
    assert change["inferlet_failures_total"] == 2
    assert change["inferlet_turns_total"] == 3
    assert change["num_inferlet_runs"] == 0
    assert change["inferlet_cpu_seconds_total"] >= 0.3


def test_a_client_that_goes_away_ends_no_run(ann: httpx.Client) -> None:
    source = "async def main(ctx):\n    ctx.send('hi')\n    return await ctx.receive()\n"
    path = f"/v1/inferlets/{put(ann, source)}/runs"
    with ann.stream("POST", path, json={"stream": True}) as reply:
        lines = reply.iter_lines()
        run = next(json.loads(line[6:])["run"] for line in lines if line.startswith("data: "))
    done: list[Events] = []
    reader = threading.Thread(target=lambda: done.append(events(ann, run, after=1)))
    reader.start()
    ann.post(f"/v1/runs/{run}/messages", json={"text": "later"})
    reader.join(30)
    assert done[0][0]["value"] == "later"


def test_the_death_of_the_engine_ends_runs_that_hold_pages(
    server: Server, ann: httpx.Client
) -> None:
    source = """
from sglang.inferlet import Context
async def main(ctx):
    text = await Context(ctx).fill("Hello there")
    ctx.send("going")
    while True:
        await text.generate_until(max_tokens=4)
"""
    run = start(ann, source)
    with ann.stream("GET", f"/v1/runs/{run}?stream=true") as reply:
        next(line for line in reply.iter_lines() if '"going"' in line)
    children = psutil.Process(server.process.pid).children(recursive=True)
    [killed] = [one for one in children if any("engine.process" in w for w in one.cmdline())]
    killed.kill()
    found = events(ann, run)
    assert [event["type"] for event in found] == ["started", "message", "error", "usage"]
    assert "the engine process" in found[2]["message"]
    # A lease waits for the next engine, as any request does.
    lease = 'async def main(ctx):\n    return await ctx.generate("Hello", max_new_tokens=4)\n'
    while (reply := ann.post(f"/v1/inferlets/{put(ann, lease)}/runs")).status_code == 503:
        time.sleep(0.2)
    assert events(ann, reply.json()["id"])[-2]["value"]["finish"]["length"] == 4
