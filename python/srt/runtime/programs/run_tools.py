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
        verify_chars: raises RequestError if a text of this many characters is too long.
        most_value: most bytes of the values of one tenant.
        toolbox: returns the operator's tools, or None.
        ahead_chars: characters by which a stream's text must grow before the engine computes it
            ahead, while the stream waits for a value; 0: no text is computed ahead.
        stream_interval: tokens between two events of a growing text.
    """

    calls: Calls
    verify_chars: Callable[[int], None]
    most_value: int
    toolbox: Callable[[], Toolbox | None]
    ahead_chars: int = 256
    stream_interval: int = 1
