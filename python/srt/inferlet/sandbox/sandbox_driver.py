"""SandboxDriver: a program whose turns the host of guests takes."""

from __future__ import annotations

from sglang.srt.inferlet.call_reading import read_text
from sglang.srt.inferlet.driver import CallAnswer, ProgramEnded, Turn, write_text
from sglang.srt.inferlet.host.host_process import GuestEnded, HostProcess, HostRun


class SandboxDriver:
    """One run. Its turns are awaited."""

    def __init__(self, host: HostProcess, run: HostRun) -> None:
        self._host, self._run = host, run
        self._begun = False

    async def turn(self, answers: list[CallAnswer]) -> Turn:
        """The calls of the next turn. Raises ProgramEnded."""
        most = self._run.limits.answer_bytes
        text = write_text(answers, most).decode() if self._begun else None
        self._begun = True
        try:
            calls = await self._run.turn(text)
        except GuestEnded as error:
            raise ProgramEnded(error.code, f"{error.code}: {error.message}") from None
        try:
            return read_text(calls.encode())
        except (ValueError, RecursionError) as error:  # the host looks at their form alone
            message = f"malformed: the calls of a turn cannot be read: {error}"
            raise ProgramEnded("malformed", message) from None

    def close(self) -> None:
        """End the run in the sandbox."""
        self._host.end(self._run)
