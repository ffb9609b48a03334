"""Watcher: ends what this process has started where it could not do so itself."""

from __future__ import annotations

import os
import subprocess

SECONDS = 5  # time for a group to end by itself before it is killed

# Reads the group's number, then waits for a word or for the end of the pipe, which is the end of
# every process that could have written one. TERM waits for stopped processes; CONT wakes them.
_SCRIPT = """
read -r group || exit 0
read -r word && exit 0
kill -s TERM -- "-$group"
kill -s CONT -- "-$group"
left=$(($1 * 10))
while [ "$left" -gt 0 ] && kill -s 0 -- "-$group"; do
    sleep 0.1
    left=$((left - 1))
done
kill -s KILL -- "-$group"
"""


class Watcher:
    """A shell in a session of its own, which no signal to this process or its terminal reaches.

    When this process is gone, killed or not, it ends the process group that was named to it with
    ``lead``, stopped or not: with SIGTERM, and after ``seconds`` with SIGKILL.
    """

    def __init__(self, seconds: int = SECONDS) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "watcher", str(seconds)], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def lead(self) -> None:
        """Make a child, before its program, lead the group that is watched: there is no moment in
        which it runs unwatched."""
        os.setsid()
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), b"%d\n" % os.getpid())

    def dismiss(self) -> None:
        """The group has ended: no process is left to end."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.communicate(b"\n")

    def act(self) -> None:
        """End the group now. Does not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
