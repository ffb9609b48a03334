"""Compiling in a process of its own, under limits of time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from sglang.srt.system.import_root import IMPORT_ROOT

MODULE = "sglang.srt.inferlet.host.compile_child"


class ProgramRefused(Exception):
    """A file is no program. The text says why."""


def precompile(source: Path, target: Path, seconds: int, most: int) -> bool:
    """Compile WebAssembly to ``target``; whether it is a component.

    Args:
        seconds: of processor time that it may take.
        most: bytes of memory that it may take.

    Raises ProgramRefused, OSError where no process can be started.
    """
    paths = [IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", MODULE, str(source), str(target), str(seconds), str(most)]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(paths),
        "RAYON_NUM_THREADS": "2",
    }
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20 * seconds,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ProgramRefused(f"the program takes more than {seconds} s to compile")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        text = done.stderr.decode(errors="replace").strip().splitlines()
        last = text[-1][:200] if text else f"exit code {done.returncode}"
        raise ProgramRefused(
            f"the program cannot be compiled within {most} bytes of memory: {last}"
        ) from None
    if "error" in found:
        raise ProgramRefused(found["error"])
    return bool(found["component"])
