"""Tracer: the constant text a program begins with, found by running it with unknown arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sglang.backend.base import Backend, Completion, Prompt
from sglang.choices import ChoicesMethod, Decision
from sglang.executor import StreamExecutor
from sglang.ir import Argument, Fork, Node
from sglang.params import DEFAULTS, GenParams
from sglang.state import ProgramState

if TYPE_CHECKING:
    from sglang.errors import Location
    from sglang.program import SglFunction


class PrefixEnd(BaseException):
    """The constant prefix ends here. Never leaves this module.

    Not an Exception, so that a program which catches those does not go on.
    """


class _Silent(Backend):
    """Renders roles as ``backend`` does and ends the prefix at the first call."""

    name = "tracing"

    def __init__(self, backend: Backend) -> None:
        self.chat_template = backend.chat_template

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        raise PrefixEnd

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        raise PrefixEnd

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        raise PrefixEnd


class _PrefixExecutor(StreamExecutor):
    """Executes in place, and leaves the program at the first node that is not constant."""

    def submit(self, node: Node, location: Location) -> None:
        for atom in node.flat():
            if isinstance(atom, (Argument, Fork)):
                raise PrefixEnd
            super().submit(atom, location)
            if self.failure is not None:
                raise PrefixEnd


def constant_prefix(program: SglFunction, backend: Backend, arguments: Mapping[str, Any]) -> str:
    """Text that every run with these ``arguments`` begins with, the others being unknown.

    The function's body runs up to the first use of an unknown argument or of the model; whatever
    it raises there ends the prefix.
    """
    known = {**program.bound, **arguments}
    unknown = {name: Argument(name) for name in program.arg_names if name not in known}
    executor = _PrefixExecutor(_Silent(backend), DEFAULTS, use_thread=False)
    # A TypeError of an Argument, PrefixEnd, or a fault that the real run will report.
    with suppress(Exception, PrefixEnd):
        program.func(ProgramState(executor), **known, **unknown)
    return executor.stream.text
