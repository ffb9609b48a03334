"""Data of the control layer: the parts that programs share, and those of one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang.srt.core.ints import Ints
from sglang.srt.engine.info import EngineInfo
from sglang.srt.inferlet.driver import Facts
from sglang.srt.inferlet.held_space import Link
from sglang.srt.inferlet.leases import Leases
from sglang.srt.inferlet.mail import Mailbox, Topics
from sglang.srt.inferlet.outbound import Outbound
from sglang.srt.inferlet.program_limits import ProgramLimits, Rights
from sglang.srt.inferlet.program_store import ProgramStore


class Texts(Protocol):
    """The methods of the tokenizer that calls need."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> Ints: ...

    def decode(self, ids: Any, skip_special: bool = False) -> str: ...


@dataclass(eq=False)
class Served:
    """The engine, and the parts that all its programs share.

    Attributes:
        link: the engine's client.
        leases: the server's ordinary completions; None: there are none.
    """

    link: Link
    info: EngineInfo
    tokenizer: Texts
    leases: Leases | None = None
    topics: Topics = field(default_factory=Topics)
    store: ProgramStore = field(default_factory=ProgramStore)
    outbound: Outbound = field(default_factory=Outbound)


@dataclass(eq=False)
class RunFollower:
    """Callbacks of the client of a run: its messages, lines of its log, its end."""

    message: Callable[[str | bytes], None] = lambda message: None
    log: Callable[[str], None] = lambda line: None
    end: Callable[[str], None] = lambda error: None


@dataclass(eq=False)
class RunOutcome:
    """Results of a run.

    Attributes:
        value: argument of the last ``set_return``.
        error: text of the exception, or why the program was ended; "" where it ended well.
        calls: number of its calls.
    """

    value: Any = None
    error: str = ""
    ended: bool = False
    calls: int = 0


@dataclass(eq=False)
class RunParts:
    """Parts of one run. ``mail``: texts, and bytes, of its client."""

    served: Served
    facts: Facts
    rights: Rights
    limits: ProgramLimits
    follower: RunFollower
    outcome: RunOutcome = field(default_factory=RunOutcome)
    mail: tuple[Mailbox[str], Mailbox[bytes]] = field(
        default_factory=lambda: (Mailbox(), Mailbox())
    )
    started: float = field(default_factory=time.monotonic)
