"""A machine that runs out of something: descriptors, disk, or a clock that can be trusted."""

from __future__ import annotations

import ast
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from helpers.launched import PYTHON, client_of, launched, toy_model
from sglang.srt.web.connection.accept import DESCRIPTORS

SPARE = 4  # descriptors left to the server


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return toy_model(tmp_path_factory.mktemp("toy"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process: Linux")
def test_without_descriptors_connections_continue_new_ones_wait(toy: list[str]) -> None:
    with launched(toy) as server, client_of(server) as http:
        before, process = http.golden(), psutil.Process(server.process.pid)
        limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert limits[0] >= min(limits[1], DESCRIPTORS)
        few = (process.num_fds() + SPARE, limits[1])
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, few)
        where = urlsplit(server.url)
        assert where.port is not None
        address = (where.hostname, where.port)
        idle = [socket.create_connection(address) for _ in range(4 * SPARE)]
        deadline = time.monotonic() + 60
        while process.num_fds() < few[0]:
            assert time.monotonic() < deadline, "the server never ran out"
            time.sleep(0.02)
        assert http.golden() == before, "a connection that was open is served"
        for connection in idle:
            connection.close()
        with client_of(server) as fresh:
            assert fresh.golden() == before, "a new connection is served once there is room"
        assert server.process.poll() is None


def launch(toy: list[str], limits: str = "", stdout: int = subprocess.PIPE) -> tuple[int, str]:
    """Exit code and errors of a launch, in a shell with ``limits`` set."""
    command = [sys.executable, "-m", "sglang.launch_server", "--port", "0", "--threads", "1", *toy]
    done = subprocess.run(
        ["bash", "-c", f'{limits or ":"}; exec "$@"', "bash", *command],
        stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_disk_without_room_is_a_clear_error_at_the_start(toy: list[str]) -> None:
    code, errors = launch(toy, "ulimit -f 0")  # no file may grow
    assert code == 1
    assert errors.startswith("sglang: [Errno ")
    assert "Traceback" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_on_a_full_disk_is_a_clear_error(toy: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, errors = launch(toy, stdout=full)
    finally:
        os.close(full)
    assert code == 1
    assert "No space left" in errors
    assert "Traceback" not in errors


def test_a_log_that_takes_no_more_stops_nothing(toy: list[str]) -> None:
    with launched([*toy, "--log-requests"]) as server, client_of(server) as http:
        before = http.golden()
        assert server.process.stderr is not None
        server.process.stderr.close()  # every line from here on is an OSError for the logger
        assert http.golden() == before
        assert server.process.poll() is None


def test_waiting_and_latency_never_read_the_wall_clock() -> None:
    """The wall clock may jump. Only a time of day that is shown comes from it."""
    readers = []
    for path in sorted((PYTHON / "srt").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time", "time.time_ns", "datetime.now", "datetime.datetime.now",
            ):  # fmt: skip
                readers.append(str(path.relative_to(PYTHON)))
    assert sorted(set(readers)) == EXPECTED


EXPECTED = [
    "srt/commands/ps_command.py",
    "srt/inferlet/sandbox/run_record.py",
    "srt/inferlet/sandbox/uploads.py",
    "srt/kv_events/publisher.py",
    "srt/runtime/batches/batch_runner.py",
    "srt/runtime/batches/batch_service.py",
    "srt/runtime/batches/file_store.py",
    "srt/runtime/explanations.py",
    "srt/runtime/loaded_adapters.py",
    "srt/tokenizer/jinja_chat_template.py",
    *(f"srt/web/{name}.py" for name in (
        "native/routes", "ollama/routes", "openai/reply_fields", "openai/responses/answer",
        "openai/score", "page/live_view", "server_state", "telemetry/gateway_metrics",
    )),
]  # fmt: skip
