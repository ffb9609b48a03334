"""Runs ``benchmark.gpu`` with all its stages in this process, so that torch and Triton are imported
once:

    python -m helpers.gpu_stages --tiny --out FOLDER
"""

from __future__ import annotations

import faulthandler
import sys

from benchmark.gpu import __main__ as command
from benchmark.gpu import stage_main
from benchmark.gpu.records import Log
from benchmark.gpu.stages import Stage
from benchmark.gpu.supervise import WRONG, Outcome, Supervisor

STATUSES = {0: "good", WRONG: "wrong"}


class OneProcess(Supervisor):
    """Calls what a process of a stage would run."""

    def _attempt(self, stage: Stage, mode: str, limit: float) -> Outcome:
        Log(self.folder, stage.name).add("started", mode=mode)
        # The command begins with `python -m MODULE`, which the stage does not read.
        sys.argv[1:] = self.command(stage, mode, limit)[3:]
        status = STATUSES.get(stage_main.main(), "broken")
        faulthandler.cancel_dump_traceback_later()  # the watchdog of its last case ends a process
        return Outcome(stage.name, mode, status, 0.0)


if __name__ == "__main__":
    command.Supervisor = OneProcess  # type: ignore[attr-defined]  # a name that it imports
    sys.exit(command.main())
