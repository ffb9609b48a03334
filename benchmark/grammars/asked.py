"""Process of a contender, started again if it dies or is late."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from benchmark.grammars.contenders import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0


class Missing(Exception):
    """The contender is not installed."""


class Asked:
    """Opens a contender in a process of its own. Raises Missing where it is not installed."""

    def __init__(self, name: str, vocabulary: Path, python: str, limit: float) -> None:
        self.name = name
        self._limit = limit
        package = PACKAGES.get(name, name)
        if subprocess.run([python, "-c", f"import {package}"], capture_output=True).returncode:
            raise Missing(f"{python} has no {package}")
        self._command = [python, "-m", "benchmark.grammars.worker", name, str(vocabulary)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, kind: str, text: str, texts: list[list[int]], masks: bool) -> dict[str, Any]:
        """The worker's answer; {"late"} where the limit is over, {"refused"} where it died."""
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        body = {"kind": kind, "text": text, "texts": texts, "masks": masks}
        try:
            process.stdin.write(json.dumps(body) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=self._limit)
        except queue.Empty:
            self._stop()
            return {"late": True}
        except OSError:
            line = ""
        if not line:
            code = process.wait()
            self._stop()
            return {"refused": f"the process died with {code}"}
        found: dict[str, Any] = json.loads(line)
        return found

    def _start(self) -> None:
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        )  # fmt: skip
        self._process = process
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        if not lines.get(timeout=START_SECONDS):
            raise RuntimeError(f"{self.name} did not start: {' '.join(self._command)}")
        self._lines = lines

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
