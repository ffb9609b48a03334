"""The states of programs under upstream's names."""

from sglang.run.executor import StreamExecutor
from sglang.run.forks import ForkGroup
from sglang.state import ProgramState

ProgramStateGroup = ForkGroup

__all__ = ["ProgramState", "ProgramStateGroup", "StreamExecutor"]
