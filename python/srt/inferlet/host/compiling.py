"""Compiling in a process of its own, under limits of time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sglang.srt.system.import_root import IMPORT_ROOT

MODULE = "sglang.srt.inferlet.host.compile_child"
WALL = 20  # times the processor time that a compile may take, on a busy machine


def from_text(text: str) -> bytes:
    """A module from its text form (WAT). Raises ProgramRefused."""
    from wasmtime import WasmtimeError, wat2wasm

    try:
        return bytes(wat2wasm(text))
    except WasmtimeError as error:
        raise ProgramRefused(f"the text is no module: {error}") from None


class ProgramRefused(Exception):
    """A file is no program. The text says why."""


def precompile(source: Path, target: Path, seconds: int, most: int) -> bool:
    """Compile WebAssembly to ``target``; whether it is a component.

    Args:
        seconds: of processor time that it may take.
        most: bytes of memory that it may take.

    Raises ProgramRefused, OSError where no process can be started.
    """
    with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop, which waits
        work = thread.submit(asyncio.run, compiled_beside(source, target, seconds, most))
        return work.result()


async def compiled_beside(source: Path, target: Path, seconds: int, most: int) -> bool:
    """``precompile``, beside an event loop. Where it is cancelled its process is ended."""
    paths = [IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", MODULE, str(source), str(target), str(seconds), str(most)]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "RAYON_NUM_THREADS": "2",
    }
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await asyncio.wait_for(process.communicate(), WALL * seconds)
    except asyncio.TimeoutError:
        raise ProgramRefused(f"the program takes more than {WALL * seconds} s to compile") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ProgramRefused(f"the program takes more than {seconds} s to compile")
    try:
        found = json.loads(output)
    except ValueError:
        text = errors.decode(errors="replace").strip().splitlines()
        last = text[-1][:200] if text else f"exit code {process.returncode}"
        raise ProgramRefused(
            f"the program cannot be compiled within {most} bytes of memory: {last}"
        ) from None
    if "error" in found:
        raise ProgramRefused(found["error"])
    return bool(found["component"])
