"""Call graph: the calls of a program and the values between them (Parrot paper, section 4.2).

The graph is bipartite: a call makes an output, and reads outputs. What a call reads is all that
its prompt was made of since the last call in it: a text that follows a call in its stream reads
that call's output, and what stood before only by way of it. Variables that no call makes (a
transform's, a scope's, a gathered list's) stand for the outputs that they were made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeAlias

from sglang.srt.programs.submission import (
    CALLS,
    ForkStep,
    JoinStep,
    Key,
    Ref,
    ScopeEndStep,
    SetStep,
    ToolStep,
    TransformStep,
    refs_in,
)
from sglang.srt.programs.submission_check import CheckedProgram, SubmissionError

MAX_EDGES = 1 << 19  # bounds a check: edges of a program, and steps that forks copy

Source: TypeAlias = int | Ref
"""An output, by the call's step; or an argument or a semantic variable of the session."""
Sources: TypeAlias = frozenset[Source]
NOTHING: Sources = frozenset()


@dataclass
class CallGraph:
    """The calls of a program.

    Attributes:
        reads: of each call, by its step, the sources that its prompt is made of; in an order in
            which each call stands behind those that it waits for.
        made: of each variable, by step and name, the sources that it is made of.
    """

    reads: dict[int, Sources] = field(default_factory=dict)
    made: dict[Key, Sources] = field(default_factory=dict)
    _readers: dict[Source, list[int]] = field(default_factory=dict)

    def producers(self, variable: Key) -> list[int]:
        """The calls that a variable is directly made by (GetProducer)."""
        return sorted(source for source in self.made[variable] if isinstance(source, int))

    def consumers(self, variable: Key) -> list[int]:
        """The calls that read what a variable is made of (GetConsumers)."""
        return self.readers(self.made[variable])

    def readers(self, sources: Iterable[Source]) -> list[int]:
        """The calls that read one of ``sources``."""
        return sorted({call for source in sources for call in self._readers.get(source, ())})

    def is_read(self, variable: Key) -> bool:
        """Whether a call reads what a variable is made of."""
        return any(source in self._readers for source in self.made[variable])

    def before(self, call: int) -> Iterator[int]:
        """The calls that a call waits for, except for those that they wait for."""
        return (source for source in self.reads[call] if isinstance(source, int))

    def external(self, call: int) -> Iterator[str]:
        """Ids of the semantic variables of the session that a call reads."""
        for source in self.reads[call]:
            if isinstance(source, Ref) and source.var is not None:
                yield source.var

    def add(self, call: int, sources: Sources) -> None:
        """Note a call after all those that it reads."""
        self.reads[call] = sources
        for source in sources:
            self._readers.setdefault(source, []).append(call)


def call_graph(program: CheckedProgram) -> CallGraph:
    """The calls of a program. Raises SubmissionError where there are too many edges."""
    return _Flow(program).graph()


@dataclass
class _Flow:
    """Sources of the text of each stream, step by step.

    Attributes:
        text: of each stream, the sources of its text after the last call.
        behind: the same behind each fork, and each end that a join waits for.
        named: of each stream, the sources of its variables by name.
        named_behind: the same behind each end.
        ends: all that joins wait for.
        visited: of each stream, its steps so far, with those before its begin.
    """

    program: CheckedProgram
    found: CallGraph = field(default_factory=CallGraph)
    text: dict[int, Sources] = field(default_factory=dict)
    behind: dict[int, Sources] = field(default_factory=dict)
    named: dict[int, dict[str, Sources]] = field(default_factory=dict)
    named_behind: dict[int, dict[str, Sources]] = field(default_factory=dict)
    visited: dict[int, int] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)
    edges: int = 0

    def graph(self) -> CallGraph:
        steps = self.program.steps.values()
        self.ends.update(end for step in steps if isinstance(step, JoinStep) for end in step.ends)
        for number in self.program.before:
            stream = self.program.homes[number]
            if stream not in self.text:
                self._begin(stream)
            self.visited[stream] += 1
            self._visit(number, stream)
            if number in self.ends:
                self._keep(number, stream)
            if isinstance(self.program.steps[number], ForkStep):
                self.behind[number] = self.text[stream]
        return self.found

    def _keep(self, number: int, stream: int) -> None:
        """Keep what a stream is made of after an end."""
        self._count(self.visited[stream], number)
        self.behind[number] = self.text[stream]
        self.named_behind[number] = dict(self.named[stream])

    def _begin(self, stream: int) -> None:
        begin = self.program.streams[stream].begin
        fork = None if begin is None else begin.fork
        if fork is None:
            self.text[stream], self.named[stream], self.visited[stream] = NOTHING, {}, 0
        else:
            parent = self.program.homes[fork]
            self._count(self.visited[parent], fork)
            self.text[stream], self.visited[stream] = self.behind[fork], self.visited[parent]
            self.named[stream] = dict(self.named[parent])
        if begin is not None and begin.number in self.ends:
            self._keep(begin.number, stream)

    def _visit(self, number: int, stream: int) -> None:
        step = self.program.steps[number]
        if isinstance(step, JoinStep):
            self._join(number, step, stream)
            return
        read = self._read(number)
        if isinstance(step, CALLS):
            sources = read if isinstance(step, ToolStep) else self.text[stream]
            self._count(len(sources), number)
            self.found.add(number, sources | self.text[stream])
            output: Sources = frozenset((number,))
            self.text[stream] = output
            self._make(number, stream, output)
        elif isinstance(step, (TransformStep, SetStep)):
            self._make(number, stream, read)
        elif isinstance(step, ScopeEndStep):
            self._make(number, stream, self.text[stream])
        elif read:
            self._grow(stream, read, number)

    def _join(self, number: int, step: JoinStep, stream: int) -> None:
        for end in step.ends:
            if end not in self.behind:  # the begin of a branch that has no steps
                self._begin(self.program.homes[end])
        ends = NOTHING.union(*(self.behind[end] for end in step.ends))
        self._grow(stream, ends, number)
        for name in step.names:
            made = NOTHING.union(
                *(self.named_behind[end].get(name, NOTHING) for end in step.ends), ends
            )
            self._count(len(made), number)
            self.found.made[number, name] = self.named[stream][name] = made

    def _read(self, number: int) -> Sources:
        """The sources of what a step reads."""
        found: set[Source] = set()
        for ref in self.program.refs(number):
            if ref.step is not None and ref.name is not None:
                found |= self.found.made[ref.step, ref.name]
            elif ref.argument is not None:
                found.add(ref)
                found.update(refs_in(self.program.arguments[ref.argument]))
            else:
                found.add(ref)
            self._count(1, number)
        return frozenset(found)

    def _make(self, number: int, stream: int, sources: Sources) -> None:
        for name in self.program.steps[number].made():
            self.found.made[number, name] = self.named[stream][name] = sources

    def _grow(self, stream: int, sources: Sources, number: int) -> None:
        if not sources <= self.text[stream]:
            self.text[stream] = self.text[stream] | sources
            self._count(len(self.text[stream]), number)

    def _count(self, edges: int, number: int) -> None:
        self.edges += edges
        if self.edges > MAX_EDGES:
            raise SubmissionError(
                f"step {number}: the graph has more than {MAX_EDGES} edges up to here; cut it into "
                "several submissions"
            )


def prefix_hashes(texts: Iterable[str], namespace: str = "") -> Iterator[tuple[int, int]]:
    """Digest and length in characters of a prompt after each of its ``texts`` (PrefixHash).

    Texts end where a variable begins or ends. Equal beginnings of prompts have equal digests within
    one ``namespace``, whatever follows; 64 bits.
    """
    hashed, length = blake2b(namespace.encode(), digest_size=8), 0
    for text in texts:
        hashed.update(text.encode("utf-8", "surrogatepass"))
        length += len(text)
        yield int.from_bytes(hashed.copy().digest(), "big"), length
