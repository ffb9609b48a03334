"""Hostile programs on a server: each ends alone, within twice its limit, while others go on."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")
pytest.importorskip("componentize_py", reason="the extra [inferlet] is not installed")

from helpers.launched import Server, best_model
from sglang.srt.inferlet.host.runner_build import runner
from wasmtime import wat2wasm

pytestmark = pytest.mark.timeout(300)  # the runner may have to be built
KEYS = [
    {"name": "ann", "key": "ann", "inferlets": {"store": True, "topics": True}},
    {"name": "bob", "key": "bob", "inferlets": {"store": True, "hosts": ["api.example.com"]}},
    {"name": "root", "key": "root", "admin": True},
]
MEBIBYTE = 1 << 20
LARGE = {"memory": 512 * MEBIBYTE, "turn_cpu": 10, "calls_bytes": 16 * MEBIBYTE, "calls": 65536}
BODY = "async def main(ctx):\n    "
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "keys").write_text(json.dumps(KEYS))
    runner()
    flags = ["--enable-inferlets", "--max-total-tokens", "16384"]
    flags += ["--api-keys-file", str(directory / "keys"), *best_model(directory)]
    started = Server(flags)
    try:
        started.wait_ready(120)
        yield started
    finally:
        started.process.terminate()
        assert started.wait_end() == 0


class Tenant:
    """A client with a key. ``events``: of a run, to its end."""

    def __init__(self, server: Server, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=60)

    def put(self, program: str | bytes) -> str:
        body = {"source": program}
        if isinstance(program, bytes):
            body = {"wasm": base64.b64encode(program).decode()}
        reply = self.http.post("/v1/inferlets", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def start(self, program: str | bytes, **fields: Any) -> str:
        reply = self.http.post(f"/v1/inferlets/{self.put(program)}/runs", json=fields)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    def events(self, run: str) -> Events:
        reply = self.http.get(f"/v1/runs/{run}?stream=true")
        assert reply.status_code == 200, reply.text
        lines = reply.text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]

    def value(self, program: str | bytes, **fields: Any) -> Any:
        """The result of a program, which must not fail."""
        found = self.events(self.start(program, **fields))
        assert found[-2]["type"] == "result", found[-2]
        return found[-2]["value"]

    def error(self, program: str | bytes, **fields: Any) -> str:
        """The error of a program, which must fail."""
        found = self.events(self.start(program, **fields))
        assert [event["type"] for event in found[-2:]] == ["error", "usage"], found[-2:]
        return str(found[-2]["message"])


@pytest.fixture
def ann(server: Server) -> Iterator[Tenant]:
    made = Tenant(server, "ann")
    yield made
    made.http.close()


@pytest.fixture
def bob(server: Server) -> Iterator[Tenant]:
    made = Tenant(server, "bob")
    yield made
    made.http.close()


def says(text: str) -> bytes:
    """A module each of whose turns gives this text."""
    data = "\\" + text.encode().hex("\\")
    pages = 2 + len(text) // 65536
    return bytes(
        wat2wasm(f"""(module (memory (export "memory") {pages}) (data (i32.const 16) "{data}")
          (func (export "alloc") (param i32) (result i32) i32.const {(pages - 1) * 65536})
          (func (export "turn") (param i32 i32) (result i64) i64.const {16 << 32 | len(text)}))""")
    )


def returns(value: str) -> bytes:
    """A module that returns a value, as JSON."""
    return says(f'[{{"call":"set_return","id":1,"value":{value}}},{{"call":"exit","id":2}}]')


# A program, the limits of its run, and the error that ends it.
PROGRAMS: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "spin": (BODY + "while True: pass", {"turn_cpu": 0.5}, "^turn_cpu: "),
    "spin before main": ("while True: pass", {"turn_cpu": 0.5}, "^turn_cpu: "),
    "spin in a plain function": (
        "def main(ctx):\n    ctx.wait(ctx.now())\n    while True: pass", {"turn_cpu": 0.5},
        "^turn_cpu: ",
    ),
    "spin through many turns": (
        BODY + "while True:\n        await ctx.now()\n        sum(range(10**4))",
        {"total_cpu": 0.5}, "^total_cpu: ",
    ),
    "catastrophic regex": (
        BODY + "import re; return re.match('(a+)+b', 'a' * 40)", {"turn_cpu": 0.5}, "^turn_cpu: ",
    ),
    "recursion with a raised limit": (
        BODY + "import sys; sys.setrecursionlimit(10**9)\n    def f(): return f() + 1\n    f()",
        {}, "^trap: ",
    ),
    "memory bomb": (BODY + "return len('x' * (1 << 30))", {}, "MemoryError"),
    "memory bomb that goes on": (
        BODY + "held = []\n    while True:\n        try: held.append(bytearray(1 << 20))\n"
        "        except MemoryError: pass", {"turn_cpu": 0.5}, "^turn_cpu: ",
    ),
    "100 MB result": (BODY + "return 'x' * (100 << 20)", LARGE, "^calls_bytes: "),
    "100 MB message": (BODY + "ctx.send('x' * (100 << 20))", LARGE, "^calls_bytes: "),
    "100 MB of messages": (
        BODY + "while True:\n        ctx.send('x' * (1 << 19))\n        await ctx.now()",
        {}, "^backlog: ",
    ),
    "10^6 calls in a turn": (
        BODY + "for _ in range(10**6): ctx.send('')", LARGE, "^calls_bytes: ",
    ),
    "10^6 small calls in a turn": (says("[" + "{}," * 10**6 + "{}]"), LARGE, "^calls: "),
    "10^6 waiting calls": (
        BODY + "while True:\n        for _ in range(4000): ctx.receive()\n        await ctx.now()",
        {"wall": 20}, "100000 calls wait for their answer already",
    ),
    "log flood": (BODY + "while True: print('x' * 1000)", {"turn_cpu": 10}, "^(memory|trap): "),
    "log flood through turns": (
        BODY + "while True:\n        for _ in range(1000): print()\n        await ctx.now()", {},
        "^backlog: ",
    ),
    "log flood of long lines": (
        BODY + "while True:\n        print('x' * 10**5)\n        await ctx.now()", {},
        "the log has more than 4194304 characters",
    ),
    "fork bomb": (BODY + "import os\n    while True: os.fork()", {}, "no attribute 'fork'"),
    "fork bomb of processes": (
        BODY + "import multiprocessing as m\n    while True: m.Process(target=print).start()", {},
        "No module named 'multiprocessing'",
    ),
    "fork bomb of tasks": (
        BODY + "import asyncio\n    async def child():\n"
        "        await asyncio.gather(child(), child())\n    await child()",
        {"turn_cpu": 2}, "^(turn_cpu|memory|trap): |MemoryError",
    ),
    "fork bomb of texts": (
        "from sglang.inferlet import Context\n" + BODY
        + "texts = [await Context(ctx).fill('The weather')]\n    await texts[0].next_dist()\n"
        "    while True:\n        texts += [new for text in texts for new in await text.fork(2)]\n"
        "        for text in texts:\n            text.extend([5])\n"
        "            await text.next_dist()",
        {"wall": 20, "pages": 2000}, "pages more would make 20.. and the program may have 2000",
    ),
    "sleep for an hour": (
        BODY + "import asyncio; await asyncio.sleep(3600)", {"wall": 0.5}, "^wall: ",
    ),
    "sleep for an hour in the sandbox": (
        BODY + "import time; time.sleep(3600)", {"wall": 5}, "use `await asyncio.sleep",
    ),
    "a message that never comes": (BODY + "await ctx.receive()", {"wall": 0.5}, "^wall: "),
    "malformed JSON": (says('[{"call":'), {}, "^malformed: "),
    "no JSON list": (says('{"call":"exit","id":1}'), {}, "^malformed: "),
    "half a character": (returns('"\\ud800"'), {}, "^malformed: "),
    "a number that is too large": (returns("1e999"), {}, "^malformed: "),
    "a number of 10^5 digits": (returns("9" * 10**5), {}, "^malformed: "),
    "deep JSON": (returns("[" * 10**5 + "]" * 10**5), {}, "^malformed: "),
    "JSON as deep as the sandbox reads": (returns("[" * 980 + "]" * 980), {}, "^malformed: "),
    "deep objects": (returns('{"a":' * 500 + "1" + "}" * 500), {}, "^malformed: "),
    "an exit without an id": (says('[{"call":"exit"}]'), {"wall": 1}, "^wall: "),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_ends_alone(ann: Tenant, bob: Tenant, name: str) -> None:
    program, limits, error = PROGRAMS[name]
    echo = "while True: ctx.send(await ctx.receive())"
    beside = [bob.start(BODY + echo), ann.start(BODY + echo)]
    run = ann.start(program, **limits)
    began = time.monotonic()
    found = ann.events(run)
    took = time.monotonic() - began
    assert [event["type"] for event in found[-2:]] == ["error", "usage"], found[-2:]
    message = found[-2]["message"]
    assert re.search(error, message), message
    assert "srt/" not in message, message
    assert len(message) < 30_000
    for name, used in (("turn_cpu", "cpu_seconds"), ("total_cpu", "cpu_seconds")):
        if message.startswith(name):
            assert limits[name] <= found[-1][used] <= 2 * limits[name] + 0.2
    if message.startswith("wall"):
        assert took <= 2 * limits["wall"] + 1
    for tenant, one in zip((bob, ann), beside):
        assert tenant.http.post(f"/v1/runs/{one}/messages", json={"text": "on"}).status_code == 200
        with tenant.http.stream("GET", f"/v1/runs/{one}?stream=true") as reply:
            assert next(line for line in reply.iter_lines() if '"on"' in line)
        assert tenant.http.delete(f"/v1/runs/{one}").status_code == 200


def test_one_error_of_a_value_does_not_hide_other_runs(ann: Tenant) -> None:
    deep = ann.start(returns("[" * 120 + "]" * 120))
    assert ann.events(deep)[-2]["type"] == "result"
    for path in ("/v1/runs", f"/v1/runs/{deep}"):
        assert ann.http.get(path).status_code == 200


HOLD = """
import json
from sglang.inferlet import Context
async def main(ctx):
    ctx.store_set("key", b"ann")
    text = await Context(ctx).fill("The weather today")
    await text.next_dist()
    await text.save("secret")
    ctx.send(json.dumps(await ctx.list_exports()))
    await ctx.receive()
    return await text.generate_until(max_tokens=3)
"""
GRAB = """
from sglang.inferlet import CallError
async def main(ctx):
    async def told(queue, answer=None):
        try:
            return repr(await (answer or ctx.synchronize(queue)))
        except CallError as error:
            return str(error)
    found = []
    for page in range(40):  # numbers that the other program has, but for this one
        queue = ctx.create_queue()
        ctx.dealloc_kvpage(queue, [page])
        found.append(await told(queue))
        ctx.export_kvpage(queue, [page], f"mine {page}")
        found.append(await told(queue))
        ctx.forward(queue, [page], [0], [page])
        found.append(await told(queue))
        found.append(await told(queue, ctx.get_next_dist(queue, page, 3)))
    return found
"""
SQUAT = """
from sglang.inferlet import CallError, Context
async def main(ctx):
    found = [await ctx.list_exports()]
    queue = ctx.create_queue()
    for name in ("secret", "ann/secret", "ann\\0secret", "../ann/secret"):
        try:
            found.append(len(await ctx.import_kvpage(queue, name)))
        except CallError as error:
            found.append(str(error))
        ctx.release_export(name)
        try:
            await ctx.list_exports()
        except CallError as error:
            found.append(str(error))
    text = await Context(ctx).fill("Something else")
    await text.next_dist()
    await text.save("secret")
    return [*found, await ctx.list_exports(), await ctx.store_get("key")]
"""
AGAIN = """
from sglang.inferlet import Context
async def main(ctx):
    text = await Context(ctx).fill("Something else")
    await text.next_dist()
    await text.save("secret")
"""


def test_forged_handles_and_names_reach_nothing_of_others(ann: Tenant, bob: Tenant) -> None:
    alone = ann.value(
        HOLD.replace("await ctx.receive()", "").replace('"secret"', '"alone"'), store=True
    )
    run = ann.start(HOLD, store=True)
    with ann.http.stream("GET", f"/v1/runs/{run}?stream=true") as reply:
        next(line for line in reply.iter_lines() if "secret" in line)
    for tenant in (bob, ann):
        found = tenant.value(GRAB)
        assert len(found) == 160
        assert all("no page" in one or "no embedding" in one or "is no output" in one
                   for one in found), found  # fmt: skip
    before, *found, exported, stored = bob.value(SQUAT, store=True)
    assert (before, exported, stored) == ([], ["secret"], None)
    assert len(found) == 8
    assert all("there is no export" in one for one in found), found
    assert "an export 'secret' is there already" in ann.error(AGAIN)
    assert ann.http.post(f"/v1/runs/{run}/messages", json={"text": "go on"}).status_code == 200
    assert ann.events(run)[-2]["value"] == alone


@pytest.mark.parametrize(
    "field", [{"topics": True}, {"hosts": ["evil.com"]}, {"hosts": ["*"]}, {"hosts": ["127.0.0.1"]},
              {"hosts": ["api.example.com", "169.254.169.254"]}],
)  # fmt: skip
def test_a_run_has_no_more_rights_than_its_key(bob: Tenant, field: dict[str, Any]) -> None:
    program = bob.put(BODY + "return 1")
    reply = bob.http.post(f"/v1/inferlets/{program}/runs", json=field)
    assert reply.status_code == 403, reply.text
    assert "grants no" in reply.text


def test_requests_to_the_server_itself_are_refused(server: Server) -> None:
    """A program that starts programs would be a fork bomb; an admin's may reach any public host."""
    root = Tenant(server, "root")
    port = server.url.rpartition(":")[2]
    source = """
async def main(ctx):
    found = []
    for host in ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0"):
        for call in (ctx.http_get, lambda url: ctx.http_post(url, "{}")):
            try:
                found.append(await call(f"http://{host}:PORT/v1/runs"))
            except Exception as error:
                found.append(error.code)
    return found
""".replace("PORT", port)
    assert root.value(source, hosts=["*"]) == ["denied"] * 12
    root.http.close()


def test_what_is_no_wasm_or_too_large_is_refused(ann: Tenant) -> None:
    before = ann.http.get("/v1/inferlets").json()["data"]
    for data in (b"\x7fELF" + bytes(64), b"PK\3\4", b"\0asm", b"\0asm\1\0\0\0" + bytes(9999)):
        body = {"wasm": base64.b64encode(data).decode()}
        assert ann.http.post("/v1/inferlets", json=body).status_code == 400
    large = "x" * (100 << 20)
    run = ann.start(BODY + "return await ctx.receive()")
    for path, body in (
        ("/v1/inferlets", {"source": large}), ("/v1/inferlets", {"wasm": large}),
        (f"/v1/runs/{run}/messages", {"text": large}),
        (f"/v1/runs/{run}/messages", {"data": large}),
    ):  # fmt: skip
        assert ann.http.post(path, json=body).status_code in (400, 413)
    assert ann.http.get("/v1/inferlets").json()["data"][:-1] == before
    assert ann.http.post(f"/v1/runs/{run}/messages", json={"text": "small"}).status_code == 200
    assert ann.events(run)[-2]["value"] == "small"
