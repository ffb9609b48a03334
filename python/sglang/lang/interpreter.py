"""The states of programs under upstream's names."""

from sglang.run.stream_executor import StreamExecutor
from sglang.state import ForkGroup, ProgramState

ProgramStateGroup = ForkGroup

__all__ = ["ProgramState", "ProgramStateGroup", "StreamExecutor"]
