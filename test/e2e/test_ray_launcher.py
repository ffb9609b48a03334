"""Engines on a Ray cluster of three nodes, all on this machine: ``make test-ray``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.launched import PYTHON, best_model
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.engine.client import Client
from sglang.srt.launchers.engines_on_ray import flags_of
from sglang.srt.launchers.placement import EngineResources
from sglang.srt.launchers.ray_launcher import PlacementError, RayLauncher
from sglang.srt.remote.curve_keys import FrontKeys, read_front_keys, write_keys
from sglang.srt.remote.handshake import Expected
from sglang.srt.remote.remote_engine import RemoteEngine
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import Assignment, OneEngine
from sglang.srt.system.import_root import IMPORT_ROOT
from sglang.srt.tokenizer import Tokenizer

pytest.importorskip("ray", reason="make test-ray installs it")
assert IMPORT_ROOT

TWO_CPUS = EngineResources(1, 2.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one CPU and two nodes with two."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    own = {"object_store_memory": 80 << 20}
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, **own},
    )
    for _ in range(2):
        made.add_node(num_cpus=2, **own)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FrontKeys]:
    engine, front = write_keys(tmp_path_factory.mktemp("keys"))
    return engine, read_front_keys(str(front))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return best_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def launcher(cluster: Any, keys: tuple[Path, FrontKeys], model: list[str]) -> Iterator[RayLauncher]:
    settings = {"model_path": model[1], "load_format": "dummy"} if model else {}
    flags = flags_of(Config.of(threads=1, max_total_tokens=8192, **settings))
    made = RayLauncher(cluster.address, flags, keys[0].read_bytes(), TWO_CPUS)
    yield made
    made.stop()
    assert not [p for p in psutil.process_iter(["cmdline"]) if "--exit-with-parent" in
                (p.info["cmdline"] or ()) and p.status() != psutil.STATUS_ZOMBIE]  # fmt: skip


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 200))


async def texts(completer: Completer) -> list[tuple[str, list[int]]]:
    prompt = completer.tokenizer.encode("The quick brown fox")
    sampling = [
        SamplingParams(max_new_tokens=400, ignore_eos=True, temperature=0.8, seed=seed)
        for seed in range(8)
    ]
    outputs = await asyncio.gather(
        *(completer.generate(CompletionRequest(prompt, one)) for one in sampling)
    )
    return [(out.text, list(out.tokens)) for (out,) in outputs]


def lost(launcher: RayLauncher) -> tuple[int, str]:
    for _ in range(60):
        for engine, reason in launcher.lost(1.0):
            return engine.number, reason
    raise AssertionError("no engine is lost")


def test_an_impossible_placement_says_what_is_missing(
    cluster: Any, keys: tuple[Path, FrontKeys]
) -> None:
    for resources, count, reason in (
        (EngineResources(3, 4.0), 1, "engine 1 of 1 .* CPU: 12 on one machine, and .* has 2"),
        (EngineResources(1, 1.0, 1.0), 1, "GPU: 1 on one machine, and the largest has 0"),
        (TWO_CPUS, 3, "engine 3 of 3 .* CPU 2 on one machine; of the cluster CPU 1 are free"),
    ):
        launcher = RayLauncher(cluster.address, [], b"", resources)
        with pytest.raises(PlacementError, match=reason):
            launcher.start(count, seconds=3.0)
        assert not launcher.engines


def test_an_engine_that_cannot_start_says_why(cluster: Any, keys: tuple[Path, FrontKeys]) -> None:
    launcher = RayLauncher(
        cluster.address, ["--page-size=0"], keys[0].read_bytes(), EngineResources(1, 1.0)
    )
    with pytest.raises(PlacementError, match=r"engine 0 did not start: .*--page-size is 0"):
        launcher.start(1)


def test_a_killed_engine_is_reported_and_its_resources_are_free(launcher: RayLauncher) -> None:
    (engine,) = launcher.start(1)
    (process,) = [p for p in psutil.process_iter(["cmdline"])
                  if "--exit-with-parent" in (p.info["cmdline"] or ())]  # fmt: skip
    process.kill()
    assert lost(launcher) == (engine.number, "its process exited with code -9")
    assert not launcher.engines
    assert len(launcher.start(1)) == 1


def test_a_command_places_engines_and_ends_them(
    cluster: Any, keys: tuple[Path, FrontKeys], model: list[str]
) -> None:
    command = [sys.executable, "-m", "sglang.srt.cli", "engine", "--launcher", "ray", "--address",
               cluster.address, "--curve-keys", str(keys[0]), "--threads", "1",
               "--max-total-tokens", "8192", *model]  # fmt: skip
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(PYTHON)}
    )
    assert child.stdout is not None
    found = re.fullmatch(r"sglang engine 0 at (tcp://\S+)\n", child.stdout.readline())
    assert found

    async def test() -> None:
        engine = RemoteEngine(found[1], keys[1])
        await engine.ready(60)
        child.send_signal(signal.SIGTERM)
        assert "has ended the session" in str(await engine.wait_lost())

    run(test)
    assert child.wait(60) == 0
    child.stdout.close()


def test_a_node_that_dies_under_load_costs_no_request(
    cluster: Any, launcher: RayLauncher, keys: tuple[Path, FrontKeys], model: list[str]
) -> None:
    """The last test here: a node is gone."""
    tokenizer = Tokenizer.load(model[1] if model else "")
    first, second = launcher.start(2)
    nodes = {n["NodeID"]: n for n in launcher._ray.nodes()}
    from ray.util import placement_group_table

    (victim,) = placement_group_table(first.group)["bundles_to_node_id"].values()
    assert victim != next(iter(placement_group_table(second.group)["bundles_to_node_id"].values()))
    assert nodes[victim]["Alive"]

    async def test() -> None:
        one = RemoteEngine(first.address, keys[1])
        await one.ready(60)
        other = RemoteEngine(second.address, keys[1], Expected.like(one.facts))
        await other.ready(60)
        assert other.exact
        whole = await texts(Completer(other.client, tokenizer))

        class Next(OneEngine):
            async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
                await one.wait_lost()
                return Assignment(other.client)

        completer = Completer(Next(one.client), tokenizer)
        completer.max_resumes = 1
        pending = asyncio.create_task(texts(completer))
        while (await one.client.control("stats")).data["generated_tokens"] < 40:
            await asyncio.sleep(0.001)
        (node,) = [n for n in cluster.list_all_nodes() if n.node_id == victim]
        await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
        assert await pending == whole
        assert one.client.lost is not None
        number, reason = await asyncio.to_thread(lost, launcher)
        assert number == first.number
        assert "its actor has died" in reason
        await other.stop()

    run(test)
