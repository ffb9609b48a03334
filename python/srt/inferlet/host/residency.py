"""Residency: one run on a lane, and the form that a turn's calls must have."""

from __future__ import annotations

import re
from itertools import accumulate

import msgspec
from sglang.srt.inferlet.host.guest_engine import Entropy
from sglang.srt.inferlet.host.guests import RunningGuest
from sglang.srt.inferlet.host.host_messages import GuestLimits, LaunchGuest, digest

MOST_NESTED = 128  # lists and objects inside of each other; the server's own code needs some more
_list = msgspec.json.Decoder(list[msgspec.Raw])
_string = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_steps = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")  # one level in, one out, as signed bytes
_others = bytes(set(range(256)) - set(b"[{]}"))


class LimitExceeded(Exception):
    """A guest has exceeded a limit. ``code`` is the limit's name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Residency:
    """One run on a lane.

    Attributes:
        guest: None until the first turn, and once the run has ended.
        entropy: random bytes that the guest gets.
        used: seconds of processor time of all its turns.
        told: seconds of ``used`` that the server knows of.
        logged: turns of ``launch.log`` that were computed again.
        entered: moment of the thread's clock when it entered the guest.
        failed: why the guest was ended inside of ``wait``.
        asked_to_wait: it has called ``wait`` on a lane that others share.
        ended: nothing but its processor time is reported of it any more.
    """

    def __init__(self, launch: LaunchGuest) -> None:
        self.run, self.launch, self.limits = launch.run, launch, launch.limits
        self.guest: RunningGuest | None = None
        self.entropy = Entropy(launch.guest.seed)
        self.used, self.told = 0.0, launch.used
        self.logged = 0
        self.entered = 0.0
        self.failed: LimitExceeded | None = None
        self.asked_to_wait = False
        self.ended = False

    @property
    def rebuilding(self) -> bool:
        """Whether turns of the log are left to compute."""
        return self.logged < len(self.launch.log)

    def begins(self) -> float:
        """Seconds of processor time that the next turn may take. Raises LimitExceeded."""
        left = self.limits.total_cpu - self.used
        if left <= 0:
            raise LimitExceeded("total_cpu", self.spent())
        return min(self.limits.turn_cpu, left)

    def untold(self) -> float:
        """Seconds of processor time to report now."""
        cpu = max(0.0, self.used - self.told)
        self.told += cpu
        return cpu

    def spent(self) -> str:
        """Say by how much ``total_cpu`` is exceeded."""
        return (
            f"the program has used {self.used:.3f} s of processor time; total_cpu is "
            f"{self.limits.total_cpu:g} s"
        )

    def take_log(self, calls: str) -> None:
        """Hold the calls of a turn that was computed again against the log. Raises LimitExceeded.

        What a program computes again was counted when it computed it first.
        """
        turned = self.launch.log[self.logged]
        self.logged += 1
        if digest(calls) != turned.digest:
            raise LimitExceeded(
                "replay",
                f"turn {self.logged - 1} has made other calls than before the host was replaced",
            )
        if not self.rebuilding:
            self.used = self.launch.used


def check_answers(answers: str, limits: GuestLimits) -> None:
    """Raise LimitExceeded where a turn's answers have too many bytes."""
    size = len(answers.encode())
    if size > limits.answer_bytes:
        raise LimitExceeded(
            "answer_bytes",
            f"the answers of a turn have {size} bytes; answer_bytes is {limits.answer_bytes}; "
            "ask for less at a time",
        )


def check_calls(calls: str, limits: GuestLimits) -> None:
    """Raise LimitExceeded where a turn's calls are too long or too many, or no JSON list of
    objects."""
    data = calls.encode()
    if len(data) > limits.calls_bytes:
        raise LimitExceeded(
            "calls_bytes",
            f"the calls of a turn have {len(data)} bytes; calls_bytes is {limits.calls_bytes}",
        )
    try:
        entries = _list.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise LimitExceeded("malformed", f"the calls of a turn are no JSON list: {error}") from None
    if len(entries) > limits.calls:
        raise LimitExceeded(
            "calls", f"a turn makes {len(entries)} calls; calls is {limits.calls}; await some first"
        )
    for entry in entries:
        if bytes(entry)[:1] != b"{":
            raise LimitExceeded(
                "malformed", f"a call is {bytes(entry)[:40].decode(errors='replace')!r}, no object"
            )
    if nested(data, MOST_NESTED):
        raise LimitExceeded(
            "malformed", f"the calls of a turn have more than {MOST_NESTED} lists and objects "
            "inside of each other"
        )  # fmt: skip


def nested(data: bytes, most: int) -> bool:
    """Whether valid JSON has more than so many lists and objects inside of each other."""
    if data.count(b"[") + data.count(b"{") <= most:
        return False
    steps = _string.sub(b"", data).translate(_steps, _others)
    return max(accumulate(memoryview(steps).cast("b"))) > most
