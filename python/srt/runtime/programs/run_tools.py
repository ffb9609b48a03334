"""RunTools: the model, the tools and the limits that all runs of programs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sglang.srt.runtime.programs.model_calls import Calls
from sglang.srt.runtime.toolbox.tool_processes import Toolbox


@dataclass(frozen=True)
class RunTools:
    """Things that the runs of one server share.

    Attributes:
        verify_chars: raises RequestError where a text of so many characters is too long.
        most_value: bytes that the values of one tenant may have.
        ahead_chars: characters by which a text has grown before its beginning is computed again,
            while a value that follows it is awaited; 0: no text is.
        stream_interval: tokens between two events of a text that grows.
    """

    calls: Calls
    verify_chars: Callable[[int], None]
    most_value: int
    toolbox: Callable[[], Toolbox | None]
    ahead_chars: int = 256
    stream_interval: int = 1
