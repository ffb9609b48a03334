"""The states of programs under upstream's names."""

from sglang.executor import StreamExecutor
from sglang.forks import ForkGroup
from sglang.state import ProgramState

ProgramStateGroup = ForkGroup

__all__ = ["ProgramState", "ProgramStateGroup", "StreamExecutor"]
