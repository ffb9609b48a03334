"""``python -m benchmark.startup``: seconds from the command to the first token, model included.

The command is the one a user types, ``python -m sglang.launch_server``; a client asks from the
first moment on and gets one token. Beside it the CPU time of all the server's processes until then,
and what no server of this kind can avoid: the interpreter and ``import torch``.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

import psutil

from benchmark.harness.command import command_parser
from benchmark.harness.server import free_port

_POLL = 0.005  # seconds between two attempts


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every start gave a token within the limit."""
    parser = command_parser("benchmark.startup", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a start may take")
    parser.add_argument("--target", type=float, default=5.0, help="median seconds not to exceed")
    parser.add_argument("server", nargs="*", help="arguments of the server, after --")
    options = parser.parse_args(arguments)
    starts, spent, bare = [], [], []
    for _ in range(options.rounds):
        seconds, cpu = first_token(options.server, options.timeout)
        starts.append(seconds)
        spent.append(cpu)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        bare.append(time.perf_counter() - began)
    print(f"first token after {median(starts):.2f} s (of {_list(starts)})")
    print(f"until then {median(spent):.2f} s of CPU (of {_list(spent)})")
    print(f"python -c 'import torch' takes {median(bare):.2f} s (of {_list(bare)})")
    good = median(starts) <= options.target
    print(f"target {options.target:g} s: {'reached' if good else 'MISSED'}")
    return 0 if good else 1


def first_token(arguments: Sequence[str], timeout: float) -> tuple[float, float]:
    """Seconds from starting the server to one sampled token, and seconds of CPU that its processes
    spent on that. The server is stopped again.

    Raises RuntimeError where it ends or gives none within ``timeout`` seconds.
    """
    port = free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--port", str(port)]
    command += ["--exit-with-parent", str(os.getpid()), *arguments]  # also where this is killed
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        server = subprocess.Popen(command, stdout=log, stderr=log)
        trouble = "not asked"
        try:
            while time.perf_counter() - began < timeout:
                if server.poll() is not None:
                    log.seek(0)
                    end = log.read().decode("utf-8", "replace")[-500:]
                    raise RuntimeError(f"the server ended with {server.returncode}: {end}")
                trouble = _ask(port)
                if not trouble:
                    return time.perf_counter() - began, _cpu(server.pid)
                time.sleep(_POLL)
            raise RuntimeError(f"no token within {timeout:g} s: {trouble}")
        finally:
            server.terminate()
            server.wait(30)


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process and of all that it has started."""
    server = psutil.Process(pid)
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return sum(float(each.user + each.system) for each in times)


def _ask(port: int) -> str:
    """Ask for one token; "" where it came, else what came instead."""
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(
            "POST", "/generate", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        if answer.status == 200 and json.loads(text)["meta_info"]["completion_tokens"] == 1:
            return ""
        return f"{answer.status}: {text[:300]}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def _list(seconds: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds)


if __name__ == "__main__":
    sys.exit(main())
