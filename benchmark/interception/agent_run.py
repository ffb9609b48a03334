"""Agents' programs on the real engine, in virtual time.

A turn is requested its gap after the answer before. With ``clients``, that many programs are alive
at any time: where one ends, the next begins.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglang.ir.sampling import SamplingParams
from sglang.srt.commands.bench.stats import percentile
from sglang.srt.core.messages import (
    Advance,
    Append,
    Done,
    Generate,
    Open,
    Park,
    Tokens,
    Truncate,
    Verb,
)
from sglang.srt.interception.gate import ProgramGate
from sglang.srt.interception.working_set import context_of

from benchmark.interception.agent_load import ALL, AgentTurn, Program
from benchmark.interception.bounds import PageNumbers, Reading
from benchmark.interception.virtual_engine import TOKEN, Arm, Machine, VirtualEngine

PAGE = 16
STAGGER = 20.0  # seconds within which the first programs begin
POLL = 0.05  # seconds
DEADLINE = 600.0  # seconds of a claim


@dataclass
class Life:
    """A program that has begun.

    Attributes:
        tokens: of its context: prompts and answers so far.
        turn: index of the one that is requested, or whose gap passes.
        due: when that turn was to be requested; first: when its first token came, or 0.
        kept, prompt: tokens of that turn's prompt, those that the context had and all.
        pages: numbers of the context's pages, up to the last answer.
    """

    program: Program
    tokens: array[int] = field(default_factory=lambda: array("i"))
    turn: int = 0
    due: float = 0.0
    first: float = 0.0
    kept: int = 0
    prompt: int = 0
    pages: tuple[int, ...] = ()

    @property
    def present(self) -> AgentTurn:
        return self.program.turns[self.turn]


@dataclass(frozen=True)
class Answer:
    """A turn that was answered, or that was still waiting at the end.

    Attributes:
        ttft: seconds from its due moment to the first token, or to the end of the run.
        generated: tokens; 0 for one that was waiting.
        prompt, cached, loaded: its prompt's tokens, those not computed, and of these those that
            came from host memory.
    """

    ttft: float
    generated: int
    prompt: int = 0
    cached: int = 0
    loaded: int = 0


@dataclass
class AgentOutcome:
    """Result of a run.

    Attributes:
        seconds: that it took.
        answers: of all turns that were due.
        finished: programs that ended.
        prefill: tokens computed that were not generated just before.
        live: mean tokens of the contexts of the programs that have begun, each shared beginning
            once.
    """

    seconds: float
    answers: list[Answer]
    finished: int
    prefill: int
    live: float
    loaded: int
    readings: list[Reading] = field(repr=False, default_factory=list)

    def goodput(self, target: float) -> float:
        """Tokens a second of the turns answered whose first token came within ``target``."""
        good = sum(answer.generated for answer in self.answers if answer.ttft <= target)
        return good / self.seconds

    def ttft(self, share: float) -> float:
        """Return a quantile of the seconds to the first token."""
        return percentile(sorted(answer.ttft for answer in self.answers) or [0.0], 100 * share)

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were not computed."""
        prompts = sum(answer.prompt for answer in self.answers)
        return sum(answer.cached for answer in self.answers) / max(prompts, 1)

    @property
    def external(self) -> float:
        """Share of the prompts' tokens, without those that the device had, that host memory had."""
        loaded = sum(answer.loaded for answer in self.answers)
        missed = sum(answer.prompt - answer.cached for answer in self.answers)
        return loaded / max(loaded + missed, 1)


class AgentRun:
    """Programs on an engine.

    Args:
        clients: programs that are alive at a time; 0: each begins at its arrival.
    """

    def __init__(
        self, arm: Arm, machine: Machine, programs: Sequence[Program], clients: int = 0
    ) -> None:
        self.arm = arm
        virtual = self.virtual = VirtualEngine(arm, machine, PAGE)
        self.worker, self.clock, self.engine = virtual.worker, virtual.clock, virtual.core
        self.lives: dict[int, Life] = {}  # by number, of programs that have begun
        self._numbers, self._pages = itertools.count(1), PageNumbers(PAGE)
        self._busy: dict[int, Life] = {}  # by request
        self._due: list[tuple[float, int]] = []  # a heap of (moment, number)
        self._programs = iter(programs)
        self._programs_by_number = {program.number: program for program in programs}
        self._answers: list[Answer] = []
        self._readings: list[Reading] = []
        self._finished = self._generated = 0
        self.references: dict[int, int] = {}  # programs alive, by page
        self._token_seconds = 0.0
        first = list(itertools.islice(self._programs, clients)) if clients else list(programs)
        for index, program in enumerate(first):
            at = STAGGER * index / len(first) if clients else program.arrival
            heapq.heappush(self._due, (at, program.number))
        self._closed = bool(clients)

    def run(self, seconds: float) -> AgentOutcome:
        """Play ``seconds`` and return the result."""
        clock, engine = self.clock, self.engine
        while clock.now() < seconds:
            while self._due and self._due[0][0] <= clock.now():
                self.requested(self._life(*heapq.heappop(self._due)))
            self.admit()
            before = clock.now()
            if engine.busy:
                for event in self.virtual.step():
                    self._take(event)
            elif self._due or self.held():
                until = self._due[0][0] - before if self._due else POLL
                clock.advance(max(min(until, POLL) if self.held() else until, 1e-9))
            else:
                break
            self._token_seconds += PAGE * len(self.references) * (clock.now() - before)
        return self._outcome(min(seconds, clock.now()))

    # -- when a turn may be submitted: without a gate, at once -------------------------------------

    def requested(self, life: Life) -> None:
        """A program wants its next turn."""
        self.submit(life)

    def answered(self, life: Life, last: bool) -> None:
        """A turn was answered; ``last``: the program has ended."""

    def admit(self) -> None:
        """Submit turns that were held, where they now may be."""

    def held(self) -> bool:
        """Return whether turns are held."""
        return False

    # ----------------------------------------------------------------------------------------------

    def submit(self, life: Life) -> None:
        """Request the present turn of a program."""
        context, request, turn = life.program.number, next(self._numbers), life.present
        new = life.tokens[life.kept :].tobytes()
        verbs: list[Verb] = [Open(context, new)]
        if life.turn:
            verbs = [Truncate(context, life.kept), Append(context, new)]
        sampling = SamplingParams(
            max_new_tokens=turn.generated, temperature=0.0, ignore_eos=True
        )  # fmt: skip
        arrived = max(life.program.arrival, 1e-9) if self.arm.line else 0.0
        last = life.turn == len(life.program.turns) - 1
        verbs.append(Advance(context, request, Generate(sampling), close=last, arrived=arrived))
        self._busy[request] = life
        refused = self.engine.handle(verbs)
        if refused:
            raise RuntimeError(f"the engine refused: {refused}")

    def _life(self, moment: float, number: int) -> Life:
        """Return the program whose turn is due, with that turn's prompt."""
        life = self.lives.get(number)
        if life is None:
            program = replace(self._programs_by_number[number], arrival=moment)
            life = self.lives[number] = Life(program)
        life.due, life.first, keep = moment, 0.0, life.present.keep
        life.kept = len(life.tokens) if keep == ALL else min(keep, len(life.tokens))
        del life.tokens[life.kept :]
        for identity, count in life.present.blocks:
            life.tokens.extend([TOKEN + 1 + identity] * count)
        life.prompt = len(life.tokens)
        return life

    def _take(self, event: object) -> None:
        now = self.clock.now()
        if isinstance(event, Tokens):
            life = self._busy[event.request]
            if any(token != TOKEN for token in event.tokens):
                raise RuntimeError(f"wrong tokens: {event.tokens}")
            life.first = life.first or now
            life.tokens.extend(event.tokens)
        elif isinstance(event, Done):
            self._done(self._busy.pop(event.request), event)
        else:
            raise RuntimeError(f"the engine failed: {event}")

    def _done(self, life: Life, event: Done) -> None:
        turn, stats, now = life.present, event.stats, self.clock.now()
        count = len(life.tokens) - life.prompt
        if not count == stats.completion_tokens == turn.generated:
            raise RuntimeError(f"{count} tokens in turn {life.turn}, not {turn.generated}")
        cached, loaded = stats.cached_tokens, stats.loaded_tokens
        self._answers.append(Answer(life.first - life.due, count, life.prompt, cached, loaded))
        self._generated += count - 1  # the last is not computed
        pages = self._pages.of(life.tokens, life.pages[: life.kept // PAGE])
        self._readings.append(Reading(pages, life.prompt // PAGE))
        last = life.turn == len(life.program.turns) - 1
        self._refer(life.pages, pages if not last else ())
        life.kept, life.pages = len(life.tokens), pages
        if last:
            self._finished += 1
            del self.lives[life.program.number]
            following = next(self._programs, None) if self._closed else None
            if following is not None:
                heapq.heappush(self._due, (now, following.number))
        self.answered(life, last)
        if not last:
            life.turn += 1
            if self.arm.parking != "none":
                self.engine.handle([Park(life.program.number, "gap", "", 0.0, DEADLINE)])
            heapq.heappush(self._due, (now + life.present.gap, life.program.number))

    def _refer(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """Count the pages of programs alive, where one exchanges its pages."""
        common = 0
        while common < min(len(old), len(new)) and old[common] == new[common]:
            common += 1
        refer = self.references
        for page in new[common:]:
            refer[page] = refer.get(page, 0) + 1
        for page in old[common:]:
            refer[page] -= 1
            if not refer[page]:
                del refer[page]

    def _outcome(self, seconds: float) -> AgentOutcome:
        waiting = [
            Answer(self.clock.now() - life.due, 0) for life in self.lives.values() if not life.first
        ]
        worker = self.worker
        return AgentOutcome(
            seconds=seconds,
            answers=self._answers + waiting,
            finished=self._finished,
            prefill=worker.computed - self._generated,
            live=self._token_seconds / max(seconds, 1e-9),
            loaded=worker.loaded,
            readings=self._readings,
        )


class GatedRun(AgentRun):
    """Programs whose turns pass the server's gate before the engine. Its blocks are pages."""

    def __init__(
        self, arm: Arm, machine: Machine, programs: Sequence[Program], clients: int,
        gate: ProgramGate,
    ) -> None:  # fmt: skip
        super().__init__(arm, machine, programs, clients)
        self.gate = gate

    def requested(self, life: Life) -> None:
        context, most = context_of(life.tokens, PAGE), life.present.generated
        if self.gate.request(life.program.number, context, most, self.clock.now()):
            self.submit(life)

    def answered(self, life: Life, last: bool) -> None:
        number, now = life.program.number, self.clock.now()
        generated = len(life.tokens) - life.prompt
        self.gate.answered(number, context_of(life.tokens, PAGE), generated, now)
        if last:
            self.gate.ended(number, now)

    def admit(self) -> None:
        for number in self.gate.admit(self.clock.now()):
            assert isinstance(number, int)
            self.submit(self.lives[number])

    def held(self) -> bool:
        return self.gate.waiting > 0
