"""``python -m benchmark.startup``: seconds from the command to the first token, model included.

The command is the one a user types, ``python -m sglang.launch_server``; a client sends requests
from the first moment on and gets one token. Beside the seconds are the CPU time of all the server's
processes until then, and the memory that they have (proportional set size, where the system tells
it). Where ``make bench-peers`` has installed llama.cpp, its server starts in turns with ours on the
embedded model in bfloat16. Last comes what a server that needs torch cannot avoid: importing it.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmark.harness import text_model
from benchmark.harness.command import command_parser
from benchmark.harness.machine import machine
from benchmark.harness.server import free_port
from benchmark.models import EMBEDDED

_POLL = 0.005  # seconds between two attempts


@dataclass
class Started:
    """A server that is started again and again, and what its starts took.

    Attributes:
        command: its command line; ``{port}`` stands for the port.
        path, body: of the request for one token.
        seconds, cpu, megabytes: of each start, until the token had come.
    """

    name: str
    command: Sequence[str]
    path: str
    body: Mapping[str, Any]
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)

    def start(self, timeout: float) -> None:
        """Start the server, wait for a token, and stop it again.

        Raises RuntimeError where it ends or gives none within ``timeout`` seconds.
        """
        port = free_port()
        command = [part.replace("{port}", str(port)) for part in self.command]
        with tempfile.TemporaryFile() as log:
            began = time.perf_counter()
            server = subprocess.Popen(command, stdout=log, stderr=log)
            trouble = "no request was sent"
            try:
                while time.perf_counter() - began < timeout:
                    if server.poll() is not None:
                        log.seek(0)
                        end = log.read().decode("utf-8", "replace")[-500:]
                        raise RuntimeError(f"the server ended with {server.returncode}: {end}")
                    trouble = self._first_token(port)
                    if not trouble:
                        self.seconds.append(time.perf_counter() - began)
                        self._measure(server.pid)
                        return
                    time.sleep(_POLL)
                raise RuntimeError(f"no token within {timeout:g} s: {trouble}")
            finally:
                server.terminate()
                server.wait(30)

    def _measure(self, pid: int) -> None:
        """Seconds of CPU and memory of a process and of all that it has started."""
        server = psutil.Process(pid)
        processes = (server, *server.children(recursive=True))
        times = [each.cpu_times() for each in processes]
        self.cpu.append(sum(float(each.user + each.system) for each in times))
        memory = [each.memory_full_info() for each in processes]
        self.megabytes.append(sum(getattr(each, "pss", each.uss) for each in memory) / 1e6)

    def _first_token(self, port: int) -> str:
        """Request one token; "" where it came, else what came instead."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", self.path, json.dumps(self.body), headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            if answer.status == 200 and _tokens(json.loads(text)) == 1:
                return ""
            return f"{answer.status}: {text[:300]}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every start gave a token within the limit."""
    parser = command_parser("benchmark.startup", __doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=3)
    add("--timeout", type=float, default=120.0, help="seconds a start may take")
    add("--target", type=float, default=5.0, help="median seconds not to exceed")
    add("--peers", type=Path, default=Path(".peers"), help="folder of the peers' environments")
    add("server", nargs="*", help="arguments of the server, after --")
    options = parser.parse_args(arguments)
    ours = _ours(options.server)
    sides = [ours, *_llama(options.peers)]
    bare = []
    about = machine()
    print(f"{about['machine']}, {about['cores']} cores, load {about['load']}, {about['commit']}")
    for _ in range(options.rounds):
        for side in sides:
            side.start(options.timeout)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        bare.append(time.perf_counter() - began)
    for side in sides:
        print(
            f"{side.name}: first token after {median(side.seconds):.2f} s ({_list(side.seconds)})"
        )
        print(f"  until then {median(side.cpu):.2f} s of CPU ({_list(side.cpu)})")
        print(f"  its processes have {median(side.megabytes):.0f} MB")
    print(f"python -c 'import torch' takes {median(bare):.2f} s ({_list(bare)})")
    good = median(ours.seconds) <= options.target
    print(f"target {options.target:g} s: {'reached' if good else 'MISSED'}")
    return 0 if good else 1


def _ours(arguments: Sequence[str]) -> Started:
    command = [sys.executable, "-m", "sglang.launch_server", "--port", "{port}"]
    command += ["--exit-with-parent", str(os.getpid()), *arguments]  # also where this is killed
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    return Started("sglang", command, "/generate", body)


def _llama(peers: Path) -> list[Started]:
    """llama.cpp's server, where it is installed."""
    program = peers / "llama" / "build" / "bin" / "llama-server"
    if not program.exists():
        print("llama.cpp is left out: make bench-peers installs it")
        return []
    command = [str(program), "--model", str(text_model.gguf(EMBEDDED, peers)), "--port", "{port}"]
    return [Started("llama.cpp", command, "/completion", {"prompt": "Hello", "n_predict": 1})]


def _tokens(answer: Mapping[str, Any]) -> int:
    """Number of tokens of an answer of either server."""
    found = answer.get("meta_info", {}).get("completion_tokens", answer.get("tokens_predicted"))
    return found if isinstance(found, int) else 0


def _list(seconds: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds)


if __name__ == "__main__":
    sys.exit(main())
