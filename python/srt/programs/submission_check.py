"""Check of a submission, whole, before anything of it runs; what it refuses names step and line."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sglang.semantics.reasoning import MARKERS
from sglang.semantics.transforms import Transform, TransformError, transforms_of
from sglang.srt.programs.submission import (
    MAIN,
    AnyStep,
    ChooseStep,
    ForkStep,
    GenStep,
    JoinStep,
    MediaStep,
    ProgramStream,
    Ref,
    ScopeBeginStep,
    ScopeEndStep,
    StreamBegin,
    Submission,
    TransformStep,
    ValueStep,
    refs_in,
    value_of,
)

MAX_REFS = 1 << 16  # references to values in one submission
MAX_SCOPES = 64  # open at once in a stream
SERVER_FIELDS = frozenset({
    "text", "input_ids", "parts", "image_data", "video_data", "stream", "session_params", "park",
    "resume", "idempotency_key", "kv_hints", "incremental_streaming_output",
})  # fmt: skip
"""Fields of ``/generate`` that a gen may not have: the server makes them, or has no use of them."""

SALTS = ("cache_salt", "extra_key", "lora_path")
"""Fields of ``/generate`` by which requests have KV of their own."""


class SubmissionError(ValueError):
    """A submission that makes no sense. The message names the step and the program's line."""


@dataclass(frozen=True)
class CheckedProgram:
    """A submission that was checked.

    Attributes:
        streams: by number. steps: by number.
        homes: the stream of each step, and of each number that a begin has.
        before: of each step those that it directly waits for, each step after them.
        values: of each step, the values that it reads, with Refs in them.
        transforms: of each step that has some.
        arguments: values by name; the Refs in them are to semantic variables.
    """

    name: str
    streams: Mapping[int, ProgramStream]
    steps: Mapping[int, AnyStep]
    homes: Mapping[int, int]
    before: Mapping[int, tuple[int, ...]]
    values: Mapping[int, tuple[Any, ...]]
    transforms: Mapping[int, tuple[Transform, ...]]
    arguments: Mapping[str, Any]

    def refs(self, step: int) -> list[Ref]:
        """The references of a step's values."""
        return [ref for value in self.values.get(step, ()) for ref in refs_in(value)]

    def variables(self) -> dict[str, tuple[int, str]]:
        """The step and name of what can be got by a name of its own: ``STEP.NAME`` for each, and
        NAME for the last one of that name in the program's own stream."""
        found = {f"{n}.{name}": (n, name) for n in self.before for name in self.steps[n].made()}
        for step in self.streams[MAIN].steps:
            found.update({name: (step.number, name) for name in step.made()})
        return found

    @cached_property
    def external(self) -> list[str]:
        """Ids of the semantic variables that the program reads."""
        refs = [ref for number in self.before for ref in self.refs(number)]
        refs += [ref for value in self.arguments.values() for ref in refs_in(value)]
        return list(dict.fromkeys(ref.var for ref in refs if ref.var is not None))

    @cached_property
    def salted(self) -> bool:
        """Whether any call sets a cache_salt, an extra_key or an adapter, and so shares no KV."""
        for step in self.steps.values():
            if isinstance(step, GenStep) and any(step.body.get(name) for name in SALTS):
                return True
            if isinstance(step, ChooseStep) and step.adapter and step.adapter.lora_path:
                return True
        return False


def checked(submission: Submission, most_steps: int) -> CheckedProgram:
    """The program of a submission. Raises SubmissionError."""
    return _Check(submission, most_steps).program()


@dataclass
class _Check:
    """The check of one submission; its methods fill in what the next ones need."""

    submission: Submission
    most_steps: int
    streams: dict[int, ProgramStream] = field(default_factory=dict)
    steps: dict[int, AnyStep] = field(default_factory=dict)
    homes: dict[int, int] = field(default_factory=dict)
    values: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    transforms: dict[int, tuple[Transform, ...]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    left: int = MAX_REFS

    def program(self) -> CheckedProgram:
        self._number()
        for stream in self.streams.values():
            self._check_begin(stream)
        self._read_arguments()
        for step in self.steps.values():
            self._check_step(step)
        order = self._ordered()
        self._check_scopes(order)
        return CheckedProgram(
            self.submission.name, self.streams, self.steps, self.homes, order, self.values,
            self.transforms, self.arguments,
        )  # fmt: skip

    def _number(self) -> None:
        streams = self.submission.streams
        count = len(streams) + sum(len(stream.steps) for stream in streams)
        if count > self.most_steps:
            raise SubmissionError(
                f"the graph has {count} steps and streams; at most {self.most_steps} "
                "(--max-program-steps). Cut it into several submissions."
            )
        for stream in streams:
            if stream.stream in self.streams:
                raise SubmissionError(f"two streams have the number {stream.stream}")
            self.streams[stream.stream] = stream
            if stream.begin is not None and stream.begin.number is not None:
                self._home(stream.begin.number, f"the begin of stream {stream.stream}", stream)
            for step in stream.steps:
                self._home(step.number, str(step), stream)
                self.steps[step.number] = step
        if MAIN not in self.streams:
            raise SubmissionError(f"there is no stream {MAIN}, the program's own")

    def _home(self, number: int, what: str, stream: ProgramStream) -> None:
        if number in self.homes:
            raise SubmissionError(f"{what} has a number that stream {self.homes[number]} has too")
        self.homes[number] = stream.stream

    def _check_begin(self, stream: ProgramStream) -> None:
        begin, what = stream.begin, f"stream {stream.stream}"
        if stream.stream == MAIN:
            if begin is not None:
                raise SubmissionError(f"{what} is the program's own; its begin must be null")
            return
        if begin is None:
            raise SubmissionError(f"{what} has no begin; it is a branch of a fork, or a call")
        forked = begin.fork is not None and begin.index is not None
        if forked == (begin.call is not None) or (begin.fork is None) != (begin.index is None):
            raise SubmissionError(f"{what} begins neither with fork and index nor with call")
        if forked and _child(self.steps, begin) != stream.stream:
            raise SubmissionError(
                f"{what} begins as branch {begin.index} of step {begin.fork}, which is no fork "
                "with that branch"
            )

    def _read_arguments(self) -> None:
        for name, value in self.submission.arguments.items():
            try:
                self.arguments[name] = value_of(value)
            except ValueError as error:
                raise SubmissionError(f"argument {name!r:.80}: {error}") from None
            for ref in refs_in(self.arguments[name]):
                self.left -= 1
                if ref.var is None:
                    raise SubmissionError(
                        f"argument {name!r:.80} is {ref}; an argument is a value, or {{var}}"
                    )

    def _check_step(self, step: AnyStep) -> None:
        try:
            self.values[step.number] = tuple(value_of(value) for value in _values(step))
            for ref in (ref for value in self.values[step.number] for ref in refs_in(value)):
                self._check_ref(ref)
            if isinstance(step, (ValueStep, TransformStep)):
                self.transforms[step.number] = transforms_of(step.transform or [])
            elif isinstance(step, ForkStep):
                self._check_fork(step)
            elif isinstance(step, JoinStep):
                self._check_join(step)
            elif isinstance(step, GenStep):
                _check_gen(step)
        except (ValueError, TransformError) as error:
            raise SubmissionError(f"{step}: {error}") from None

    def _check_ref(self, ref: Ref) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"the graph has more than {MAX_REFS} references to values")
        if not ref.sound:
            raise ValueError("a reference has one form: {step, name}, {argument} or {var}")
        if ref.argument is not None and ref.argument not in self.arguments:
            known = ", ".join(list(self.arguments)[:8])
            raise ValueError(f"{ref} is not given; the arguments are {known or 'none'}")
        if ref.step is not None:
            source = self.steps.get(ref.step)
            if source is None or ref.name not in source.made():
                raise ValueError(f"{ref} is read, which no step makes")

    def _check_fork(self, step: ForkStep) -> None:
        for index, child in enumerate(step.children):
            begin = self.streams[child].begin if child in self.streams else None
            if begin is None or (begin.fork, begin.index) != (step.number, index):
                raise ValueError(f"its branch {index} is stream {child}, which does not begin so")

    def _check_join(self, step: JoinStep) -> None:
        own = self.homes[step.number]
        for end in step.ends:
            if end not in self.homes:
                raise ValueError(f"it waits for step {end}, which does not exist")
            if self.homes[end] == own:
                raise ValueError(f"it waits for step {end} of its own stream")
        self.left -= len(step.ends)
        if len(set(step.names)) < len(step.names):
            raise ValueError("it makes a variable twice")
        if len(step.names) * len(step.ends) > MAX_REFS:
            raise ValueError(f"it gathers more than {MAX_REFS} values")

    def _ordered(self) -> dict[int, tuple[int, ...]]:
        """The steps that each one waits for, in a topological order.

        Raises SubmissionError for a cycle.
        """
        before = {n: self._awaited(n) for n in self.steps}
        missing = Counter({n: len(numbers) for n, numbers in before.items()})
        followers: dict[int, list[int]] = {}
        for n, numbers in before.items():
            for number in numbers:
                followers.setdefault(number, []).append(n)
        ready = [n for n in self.steps if not missing[n]]
        heapq.heapify(ready)
        order = []
        while ready:
            number = heapq.heappop(ready)
            order.append(number)
            for follower in followers.get(number, ()):
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, follower)
        if len(order) < len(self.steps):
            self._raise_cycle(set(self.steps) - set(order), before)
        return {number: tuple(sorted(before[number])) for number in order}

    def _awaited(self, number: int) -> set[int]:
        """The steps that a step waits for. A stream's begin is what begins it."""
        step = self.steps[number]
        found = {self._before[number]}
        found |= {ref.step for value in self.values[number] for ref in refs_in(value)}
        if isinstance(step, JoinStep):
            found |= {end if end in self.steps else self._begun(end) for end in step.ends}
        return {each for each in found if each is not None}

    @cached_property
    def _before(self) -> dict[int, int | None]:
        """The step before each, in its stream or, for the first one, in front of its stream."""
        found: dict[int, int | None] = {}
        for stream in self.streams.values():
            last = stream.begin.fork if stream.begin is not None else None
            for step in stream.steps:
                found[step.number] = last
                last = step.number
        return found

    def _begun(self, number: int) -> int | None:
        begin = self.streams[self.homes[number]].begin
        return None if begin is None else begin.fork

    def _raise_cycle(self, left: set[int], before: Mapping[int, Iterable[int]]) -> None:
        path = [min(left)]
        while path[-1] not in path[:-1]:
            path.append(next(each for each in sorted(before[path[-1]]) if each in left))
        cycle = path[path.index(path[-1]) + 1 :]
        shown = ", ".join(str(self.steps[number]) for number in cycle[:8])
        more = f" and {len(cycle) - 8} more" if len(cycle) > 8 else ""
        raise SubmissionError(f"these steps wait for one another: {shown}{more}")

    def _check_scopes(self, order: Iterable[int]) -> None:
        """Raise SubmissionError for a scope that ends and was not begun."""
        at_fork: dict[int, list[str]] = {}
        open_in: dict[int, list[str]] = {}
        for number in order:
            stream, step = self.streams[self.homes[number]], self.steps[number]
            begin = stream.begin
            if stream.stream not in open_in:
                forked = begin is not None and begin.fork is not None
                open_in[stream.stream] = [*at_fork[begin.fork]] if forked else []  # type: ignore[union-attr,index]
            scopes = open_in[stream.stream]
            if isinstance(step, ScopeBeginStep):
                if len(scopes) >= MAX_SCOPES:
                    raise SubmissionError(f"{step}: {MAX_SCOPES} scopes are open, the most")
                scopes.append(step.name)
            elif isinstance(step, ScopeEndStep):
                if step.name not in scopes:
                    raise SubmissionError(f"{step}: the scope was not begun")
                scopes.remove(step.name)
            elif isinstance(step, ForkStep):
                at_fork[number] = [*scopes]


def _child(steps: Mapping[int, AnyStep], begin: StreamBegin) -> int | None:
    fork, index = steps.get(begin.fork), begin.index  # type: ignore[arg-type]
    if not isinstance(fork, ForkStep) or index is None or index >= len(fork.children):
        return None
    return fork.children[index]


def _values(step: AnyStep) -> tuple[Any, ...]:
    """The values of a step; an image's address is one too."""
    if isinstance(step, MediaStep) and isinstance(step.source, dict) and "url" in step.source:
        if set(step.source) != {"url"} or not isinstance(step.source["url"], str):
            raise ValueError("source is a text, {url} or a reference to a value")
        return (step.source["url"],)
    if isinstance(step, MediaStep) and not isinstance(step.source, (str, dict)):
        raise ValueError("source is a text, {url} or a reference to a value")
    return step.values()


def _check_gen(step: GenStep) -> None:
    if forbidden := SERVER_FIELDS & step.body.keys():
        raise ValueError(f"body has {min(forbidden)}, which the server makes; remove it")
    if step.reasoning is not None and step.reasoning not in MARKERS:
        raise ValueError(f"reasoning is {step.reasoning!r:.60}; use one of {', '.join(MARKERS)}")
