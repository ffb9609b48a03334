"""RayLauncher: engines on the machines of a Ray cluster.

Ray puts processes on machines and says when they die; requests, tokens and KV never go through it.
Each engine is a plain actor in a placement group of its own, without automatic restart. The actor
runs ``sglang engine`` as its child, on an address of its machine, and ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sglang.srt.launchers.placement import EngineResources, missing
from sglang.srt.system.import_root import IMPORT_ROOT

log = logging.getLogger("sglang.srt.launchers")
PLACEMENT_SECONDS = 30.0
STOP_SECONDS = 5.0
TAIL = 2000  # bytes of an engine's log that a failed start reports


class PlacementError(RuntimeError):
    """The cluster cannot run the engines, or cannot be reached."""


class PlacedEngine(NamedTuple):
    """An engine on the cluster."""

    number: int
    address: str
    actor: Any
    ended: Any  # reference to the exit code, once it has ended
    group: Any


class EngineActor:
    """Body of the actor: one engine process, a child."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="sglang-"))
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def start(self, host: str, flags: Sequence[str], keys: bytes) -> str:
        """Start the engine; the address at which it serves. Raises RuntimeError with the end of its
        log where it does not start."""
        command = [sys.executable, "-m", "sglang.srt.cli", "engine", *flags]
        file = self._directory / "engine.key"
        file.touch(0o600)
        file.write_bytes(keys)
        command += ["--listen", f"tcp://{host}:0", "--curve-keys", str(file)]
        command += ["--exit-with-parent", str(os.getpid())]
        with (self._directory / "log").open("wb") as errors:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PYTHONPATH": IMPORT_ROOT},
            )  # fmt: skip
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if " at tcp://" not in line:
            end = (self._directory / "log").read_bytes()[-TAIL:].decode("utf-8", "replace").strip()
            raise RuntimeError(end.rpartition("\n")[2] or "the engine ended without a word")
        return line.rpartition(" at ")[2].split()[0]

    def ended(self) -> int:
        """Wait for the end of the engine; its exit code."""
        assert self._child is not None
        return self._child.wait()

    def stop(self) -> None:
        """End the engine, killing it after ``STOP_SECONDS``, and remove its files."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_SECONDS)
            self._child.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class RayLauncher:
    """Starts engines on a cluster, and says which ones have died.

    Args:
        address: of the cluster, as ``ray.init`` takes it; "auto" finds the one of this machine.
        flags: of ``sglang engine``, without its address and keys.
        keys: contents of the engines' key file.

    Raises PlacementError where Ray is not installed or the cluster cannot be reached.
    """

    def __init__(
        self, address: str, flags: Sequence[str], keys: bytes, resources: EngineResources
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise PlacementError(
                f"--launcher ray needs the extra ray: pip install -e '.[ray]' ({error})"
            ) from error
        self._ray: Any = ray
        self._flags, self._keys, self._resources = list(flags), keys, resources
        self._next = 0  # number of the next engine
        self._groups: list[Any] = []
        self.engines: list[PlacedEngine] = []
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise PlacementError(f"no Ray cluster at --address {address}: {error}") from error

    def start(self, count: int, seconds: float = PLACEMENT_SECONDS) -> list[PlacedEngine]:
        """Start so many engines and wait until they serve. Placing them may take ``seconds``;
        loading their models as long as it takes.

        Raises PlacementError, with what is missing, and nothing is left on the cluster.
        """
        try:
            deadline = time.monotonic() + seconds
            groups = [self._group(number, count, deadline, seconds) for number in range(count)]
            starting = [self._actor(group) for group in groups]
            for group, (actor, address) in zip(groups, starting):
                self.engines.append(self._placed(group, actor, address))
        except BaseException:
            self.stop()
            raise
        return self.engines

    def _group(self, number: int, count: int, deadline: float, seconds: float) -> Any:
        """A placement group for one engine, which has its resources."""
        from ray.util.placement_group import placement_group

        bundle = self._resources.bundle
        group = placement_group([bundle], strategy="STRICT_PACK")
        self._groups.append(group)
        if group.wait(timeout_seconds=max(deadline - time.monotonic(), 0.0)):
            return group
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        lacking = missing(bundle, machines, self._ray.available_resources())
        raise PlacementError(
            f"engine {number + 1} of {count} had no machine in {seconds:g} s: it needs {lacking}"
        )

    def _actor(self, group: Any) -> tuple[Any, Any]:
        """An actor in a group, and a reference to the address of its engine."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._resources.bundle
        options = {
            "num_cpus": bundle.get("CPU", 0.0),
            "num_gpus": bundle.get("GPU", 0.0),
            "max_restarts": 0,
            "max_concurrency": 3,  # ``ended`` waits while another method runs
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0),
            "runtime_env": {"env_vars": {"PYTHONPATH": IMPORT_ROOT}},
        }
        actor = self._ray.remote(EngineActor).options(**options).remote()
        host = self._host(group)
        return actor, actor.start.remote(host, self._flags, self._keys)

    def _host(self, group: Any) -> str:
        """Address of the machine that a group is on."""
        from ray.util import placement_group_table

        (node,) = placement_group_table(group)["bundles_to_node_id"].values()
        found = {one["NodeID"]: one["NodeManagerAddress"] for one in self._ray.nodes()}
        return str(found[node])

    def _placed(self, group: Any, actor: Any, address: Any) -> PlacedEngine:
        number, self._next = self._next, self._next + 1
        try:
            found = self._ray.get(address)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise PlacementError(f"engine {number} did not start: {cause}") from None
        return PlacedEngine(number, found, actor, actor.ended.remote(), group)

    def lost(self, seconds: float) -> list[tuple[PlacedEngine, str]]:
        """Wait at most ``seconds`` for an engine that ends. Return it with the reason, in a list
        that is empty where none has; it leaves ``engines``, and its resources are free."""
        references = {engine.ended: engine for engine in self.engines}
        if not references:
            return []
        done, _ = self._ray.wait(list(references), num_returns=1, timeout=seconds)
        found = [(references[reference], self._reason(reference)) for reference in done]
        for engine, _ in found:
            self.engines.remove(engine)
            self._release(engine)
        return found

    def _reason(self, reference: Any) -> str:
        try:
            return f"its process exited with code {self._ray.get(reference)}"
        except self._ray.exceptions.RayError as error:
            return f"its actor has died ({type(error).__name__}): {str(error).splitlines()[0]}"

    def _release(self, engine: PlacedEngine) -> None:
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(engine.actor.stop.remote(), timeout=2 * STOP_SECONDS)
        self._ray.kill(engine.actor)
        remove_placement_group(engine.group)
        self._groups.remove(engine.group)

    def stop(self) -> None:
        """End all engines and free what they had on the cluster. Safe to call twice."""
        from ray.util.placement_group import remove_placement_group

        if not self._ray.is_initialized():
            return
        for engine in list(self.engines):
            self._release(engine)
        self.engines.clear()
        for group in self._groups:  # actors end with their group
            remove_placement_group(group)
        self._groups.clear()
        self._ray.shutdown()
