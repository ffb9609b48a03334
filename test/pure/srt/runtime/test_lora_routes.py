"""Adapters over HTTP: permission to load them, their sources, and the names by which requests find
them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest
import sglang as sgl
from helpers.http_server import Client, Served, serve_text
from helpers.http_server import is_error as error_of
from helpers.scripted import Scripted
from helpers.text_worker import TextWorker
from helpers.toy_tokenizer import byte_level
from sglang.backend.native.endpoint import RuntimeEndpoint
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.messages import AdapterInfo, LoadAdapter, Reply, UnloadAdapter
from sglang.srt.engine import client as engine
from sglang.srt.engine.client import EngineLost
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

FACTS: dict[str, Any] = {"lora": True, "max_loras_per_batch": 4, "max_loaded_loras": 3}
PROMPT = "the quick brown fox"


class Loading:
    """Records the adapters and rows that a worker got."""

    def __init__(self, worker: TextWorker) -> None:
        self.paths: dict[int, str] = {}
        self.rows: list[int] = []
        worker.load_adapter = self.load  # type: ignore[method-assign]
        worker.unload_adapter = self.paths.pop  # type: ignore[method-assign, assignment]
        run = worker.run

        def counted(batch: Batch) -> StepResult:
            self.rows += [row.adapter for row in batch.rows]
            return run(batch)

        worker.run = counted  # type: ignore[method-assign]

    def load(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        if not Path(path).is_dir():
            raise ValueError(f"adapter path {path} is no directory.")
        self.paths[number] = path
        return {"rank": 4, "bytes": 100, "modules": ["q_proj"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lora")
    for name in ("dir/one", "dir/two", "secret", "named"):
        (root / name).mkdir(parents=True)
    (root / "dir" / "link").symlink_to(root / "secret")
    return root


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[Served]:
    config = Config.of(lora_paths={"first": str(place / "named")}, lora_dir=str(place / "dir"))
    with serve_text(place, config, **FACTS) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[Client]:
    client = served.client
    yield client
    for name in list(served.state.runtime.adapters.known):
        client.post("/unload_lora_adapter", json={"lora_name": name})
    client.idle()


@pytest.fixture
def loading(served: Served) -> Loading:
    return Loading(served.worker)


def is_error(reply: Any, status: int, param: str) -> bool:
    assert error_of(reply, status)["param"] == param
    return True


def load(http: Client, name: str, path: str, prefix: str = "") -> Any:
    body = {"lora_name": name, "lora_path": path}
    return http.post(f"{prefix}/load_lora_adapter", json=body)


def generated(http: Client, **body: Any) -> Any:
    settings = {"sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    return http.post("/generate", json={"text": PROMPT, **settings, **body})


def test_only_allowed_paths_are_loaded(http: Client, loading: Loading, place: Path) -> None:
    for path in (str(place / "secret"), "../secret", "link", ".", "", "/etc", "one\0", "one/../.."):
        reply = load(http, "spy", path)
        assert is_error(reply, 403, "lora_path"), path
        assert "secret" not in reply.text.replace(path, "")
    assert load(http, "missing", "none").status_code == 400
    assert loading.paths == {}
    for name, path in (
        ("a", "one"),
        ("b", str(place / "dir" / "two")),
        ("c", str(place / "named")),
    ):
        assert load(http, name, path).json()["loaded_adapters"][name].startswith(str(place))
    assert is_error(load(http, "d", "one"), 400, "lora_path")  # --max-loaded-loras


def test_names(http: Client, loading: Loading) -> None:
    assert load(http, "poet", "one", "/v1").status_code == 200
    for name in ("poet", "toy", "default", "", "x" * 300, "a\nb"):
        assert is_error(load(http, name, "two"), 400, "lora_name")
    number = next(iter(loading.paths))
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"text": "x", "lora_path": "poet", "sampling_params": {"max_new_tokens": 1}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "model": "poet"}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "model": "toy:poet"}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1, "lora_path": "poet"}),
        ("/v1/embeddings", {"input": "x", "model": "poet"}),
        ("/v1/messages", {**chat, "model": "poet"}),
        ("/v1/chat/completions", {**chat, "model": "poet"}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1, "model": "toy:poet"}),
    ]
    for path, body in bodies:
        loading.rows.clear()
        reply = http.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
        assert set(loading.rows) == {number}, path
        named = "lora_path" if "lora_path" in body else "model"
        reply = http.post(path, json={**body, named: "ghost"})
        assert reply.status_code == 404, path
    loading.rows.clear()
    assert http.post("/v1/completions", json={"prompt": "x", "model": "default"}).status_code == 200
    assert set(loading.rows) == {0}
    both = {"prompt": "x", "model": "first", "lora_path": "poet"}
    assert http.post("/v1/completions", json=both).status_code in (400, 404)


def test_a_batch_has_an_adapter_for_each_prompt(http: Client, loading: Loading) -> None:
    load(http, "poet", "one")
    reply = generated(http, text=["a", "b"], lora_path=["poet", None])
    assert [len(one["output_ids"]) for one in reply.json()] == [1, 1]
    assert set(loading.rows) == {0, *loading.paths}
    assert is_error(generated(http, text=["a", "b"], lora_path=["poet"]), 400, "lora_path")


def test_unloading_closes_what_is_parked(http: Client, loading: Loading) -> None:
    """A context that waits for a tool does not keep its adapter loaded."""
    load(http, "poet", "one")
    found = generated(http, lora_path="poet", park={}).json()
    handle = found["meta_info"]["finish_reason"]["resume"]
    other = generated(http, park={}).json()["meta_info"]["finish_reason"]["resume"]
    assert http.post("/unload_lora_adapter", json={"lora_name": "poet"}).status_code == 200
    assert is_error(http.post("/generate", json={"resume": handle}), 410, "resume")
    assert http.post("/generate", json={"resume": other}).status_code == 200


def test_models_are_listed_with_their_parent(http: Client, loading: Loading) -> None:
    load(http, "poet", "one")
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    base = http.get("/v1/models").json()["data"][0]["id"]
    assert (cards[base]["parent"], cards["poet"]["parent"]) == (None, base)
    assert http.get("/v1/models/poet").json()["root"].endswith("one")
    text = http.get("/metrics").text
    assert 'sglang:num_lora_adapters{model_name="sglang-tiny"} 1.0' in text
    assert http.post("/unload_lora_adapter", json={"lora_name": "poet"}).status_code == 200
    assert is_error(http.post("/unload_lora_adapter", json={"lora_name": "poet"}), 404, "lora_name")
    assert is_error(generated(http, lora_path="poet"), 404, "lora_path")
    assert loading.paths == {}


def test_a_miss_by_another_adapter_is_explained(http: Client, loading: Loading) -> None:
    load(http, "poet", "one")
    generated(http, cache_salt="mine")
    for rid, more in (("by", {"lora_path": "poet"}), ("again", {"lora_path": "poet"})):
        generated(http, rid=rid, cache_salt="mine", **more)
    kinds = [
        {reason["kind"] for reason in http.get(f"/explain/{rid}").json()["prompts"][0]["reasons"]}
        for rid in ("by", "again")
    ]
    assert kinds == [{"adapter", "wanted"}, {"cached", "wanted"}]


def test_programs_name_adapters(http: Client, loading: Loading, served: Served) -> None:
    backend = RuntimeEndpoint(served.url)
    backend.load_lora_adapter("poet", "one")
    number = next(iter(loading.paths))

    @sgl.function
    def program(s):
        s += "It is " + sgl.gen("a", max_tokens=2)
        s += sgl.select("b", [" red", " blue"])
        for fork in s.fork(2):
            fork += sgl.gen("c", max_tokens=1)

    program.run(backend=backend, lora_path="poet").sync()
    assert set(loading.rows) == {number}

    @sgl.function
    def mixed(s):
        s += "It is" + sgl.gen("a", max_tokens=1) + sgl.gen("b", max_tokens=1, lora_path="poet")

    loading.rows.clear()
    mixed.run(backend=backend).sync()
    assert set(loading.rows) == {0, number}
    with pytest.raises(sgl.SglangError, match="no adapter 'ghost'"):
        mixed.run(backend=backend, lora_path="ghost").sync()
    backend.unload_lora_adapter("poet")


def test_without_adapters_they_are_refused(tmp_path: Path) -> None:
    with serve_text(tmp_path) as server:
        http = server.client
        assert is_error(generated(http, lora_path="poet"), 400, "lora_path")
        assert is_error(load(http, "poet", "one"), 400, "lora_name")
        body = {"prompt": "x", "max_tokens": 1, "model": "any-name"}
        assert http.post("/v1/completions", json=body).status_code == 200


def test_loading_needs_the_admins_key(tmp_path: Path) -> None:
    config = Config.of(api_key="user", admin_api_key="root", enable_lora=True)
    with serve_text(tmp_path, config, **FACTS) as server:
        for prefix in ("", "/v1"):
            assert load(server.client, "a", "b", prefix).status_code == 403


class Restarts:
    """Engines that come and go below one server; each answers on command."""

    def __init__(self, directory: Path, at_start: tuple[str, ...]) -> None:
        completion: Any = Scripted(Tokenizer(byte_level(directory)))
        adapters = tuple(AdapterInfo(name=name, path=f"start/{name}") for name in at_start)
        completion.info = msgspec.structs.replace(completion.info, **FACTS, adapters=adapters)
        self.completion = completion
        self.state = ServerState(Config.of(enable_lora=True, lora_dir="."), completion)
        self.verbs: list[Any] = []
        self._start()

    def _start(self) -> None:
        self.verbs.clear()
        client = engine.Client(self.completion.info, self.verbs.extend)
        self.completion.engines.client = self.client = client

    async def lose(self) -> None:
        self.client.fail(EngineLost("killed"))
        await self.settle()

    async def restart(self) -> None:
        await self.lose()
        self._start()
        self.state.engine_changed(
            cast(Any, SimpleNamespace(name="0", client=self.client, restarts=1))
        )
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def answer(self, message: str = "") -> None:
        """Answer all verbs sent to the engine; with a message, refuse them."""
        verbs, self.verbs[:] = list(self.verbs), []
        for verb in verbs:
            data = {"name": verb.name, "path": getattr(verb, "path", "")}
            self.client.deliver([Reply(verb.id, not message, message, data)])
        await self.settle()

    async def answered(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        await self.settle()
        await self.answer()
        return await task

    def asked(self) -> list[tuple[type, str]]:
        return [(type(verb), verb.name) for verb in self.verbs]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        transport = httpx.ASGITransport(make_app(self.state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)


Test = Callable[[Restarts], Awaitable[None]]


def restarting(directory: Path, test: Test, *at_start: str, **known: str) -> None:
    async def run() -> None:
        engines = Restarts(directory, at_start)
        for name, path in known.items():
            await engines.answered(engines.state.runtime.adapters.load(name, path, trusted=True))
        await test(engines)

    asyncio.run(run())


def test_an_engine_lost_while_adapters_are_restored_loses_none(tmp_path: Path) -> None:
    async def test(engines: Restarts) -> None:
        adapters = engines.state.runtime.adapters
        for _ in range(3):
            await engines.restart()
            assert engines.asked() == [(LoadAdapter, "poet"), (LoadAdapter, "judge")]
            assert [verb.path for verb in engines.verbs] == ["one", "two"]
            assert adapters.loaded.keys() == {"first"}
        await engines.answer()
        assert adapters.loaded.keys() == {"first", "poet", "judge"}
        assert [adapters.of(name) for name in ("first", "poet")] == ["first", "poet"]

    restarting(tmp_path, test, "first", poet="one", judge="two")


def test_a_bad_adapter_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(engines: Restarts) -> None:
        await engines.restart()
        await engines.answer("the directory is gone")
        assert (
            "'poet' cannot be loaded after the engine's restart: The adapter was not loaded: the"
            in caplog.text
        )
        assert is_error(
            await engines.post("/v1/completions", prompt="x", model="poet"), 404, "model"
        )
        await engines.restart()
        assert engines.asked() == []

    restarting(tmp_path, test, poet="one")


def test_what_had_gone_makes_room_first(tmp_path: Path) -> None:
    async def test(engines: Restarts) -> None:
        adapters = engines.state.runtime.adapters
        for name in ("first", "second"):
            await engines.answered(adapters.unload(name))
        await engines.answered(adapters.load("second", "other", trusted=True))
        await engines.restart()
        assert engines.asked() == [(UnloadAdapter, "first"), (UnloadAdapter, "second")]
        await engines.answer()
        assert [(verb.name, verb.path) for verb in engines.verbs] == [("second", "other")]
        await engines.answer()
        assert adapters.loaded.keys() == {"second"}

    restarting(tmp_path, test, "first", "second")


def test_requests_wait_for_what_is_restored(tmp_path: Path) -> None:
    async def test(engines: Restarts) -> None:
        await engines.restart()
        for path, body in (
            ("/generate", {"text": "x", "lora_path": "poet"}),
            ("/v1/completions", {"prompt": "x", "model": "toy:poet"}),
        ):
            reply = await engines.post(path, **body)
            assert error_of(reply, 503)["code"] == "engine_lost", path
            assert reply.headers["retry-after"] == "5"
        assert "poet" in engines.state.runtime.adapters.known  # listed in /v1/models too
        for name, param in (("poet", "lora_name"), ("fourth", "lora_path")):  # taken; no room
            body = {"lora_name": name, "lora_path": "one"}
            assert is_error(await engines.post("/load_lora_adapter", **body), 400, param)
        await engines.answer()
        assert engines.state.runtime.adapters.of("poet") == "poet"

    restarting(tmp_path, test, poet="one", judge="two", third="three")


def test_what_is_restored_can_be_unloaded(tmp_path: Path) -> None:
    async def test(engines: Restarts) -> None:
        adapters = engines.state.runtime.adapters
        await engines.restart()
        body = {"lora_name": "poet"}
        unloading = asyncio.ensure_future(engines.post("/unload_lora_adapter", **body))
        while "poet" in adapters.known:
            await asyncio.sleep(0.001)
        assert is_error(
            await engines.post("/generate", text="x", lora_path="poet"), 404, "lora_path"
        )
        await engines.answer()  # the loading had begun
        assert engines.asked() == [(UnloadAdapter, "poet")]
        with pytest.raises(ValueError, match="taken"):
            await adapters.load("poet", "one", trusted=True)
        await engines.answer()
        assert (await unloading).json()["loaded_adapters"] == {"judge": "two"}
        await engines.answered(adapters.load("poet", "one", trusted=True))
        await engines.restart()
        await engines.lose()  # none is being loaded any more
        assert (await engines.post("/unload_lora_adapter", **body)).status_code == 200
        await engines.restart()
        assert engines.asked() == [(LoadAdapter, "judge")]

    restarting(tmp_path, test, poet="one", judge="two")


def test_an_unload_outlives_its_engine(tmp_path: Path) -> None:
    async def test(engines: Restarts) -> None:
        unloads = [
            asyncio.ensure_future(engines.post("/unload_lora_adapter", lora_name=name))
            for name in ("poet", "first")
        ]
        while len(engines.verbs) < len(unloads):
            await asyncio.sleep(0.001)
        await engines.lose()
        assert [(await reply).status_code for reply in unloads] == [200, 200]
        assert (await engines.post("/unload_lora_adapter", lora_name="judge")).status_code == 200
        await engines.restart()
        assert engines.asked() == [(UnloadAdapter, "first")]
        assert engines.state.runtime.adapters.loaded == {}

    restarting(tmp_path, test, "first", poet="one", judge="two")
