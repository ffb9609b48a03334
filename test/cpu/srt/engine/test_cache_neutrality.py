"""Caching never changes output: the same tokens with the cache on, off, and one request at a time.

The real engine and the real worker, fp32, over random histories of requests with shared prefixes,
forks, aborts, pools so small that eviction and retraction happen, and every order.
"""

from __future__ import annotations

import os
import random

import pytest
from helpers.seeds import seeds
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config, MemoryConfig, ModelConfig, ScheduleConfig
from sglang.srt.config.sections import POLICIES
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Close,
    Done,
    Event,
    Failed,
    ForkContext,
    Generate,
    Open,
    PromptChunk,
    Tokens,
    Verb,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Executor, local_executor
from sglang.srt.engine.info import EngineInfo

HISTORIES = int(os.environ.get("NEUTRALITY_HISTORIES", len(seeds(100, 200))))
CHUNKS = max(HISTORIES // 50, 1)
POOL = 256
Answers = dict[int, tuple[list[int], list[float]]]


@pytest.fixture(scope="module", params=[1, 4], ids=["page1", "page4"])
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """One worker a page size; its weights are random and its pool is POOL tokens."""
    path = write_config(tmp_path_factory.mktemp("model"))
    model = ModelConfig(model_path=path, load_format="dummy", dtype="float32")
    memory = MemoryConfig(page_size=request.param, max_total_tokens=POOL)
    return local_executor(Config(model=model, memory=memory))


class Plan:
    """Requests of a history, as plain data, so that they can be repeated in other circumstances."""

    def __init__(self, seed: int, vocab: int) -> None:
        r = self.random = random.Random(seed)
        stems = [[r.randrange(3, vocab) for _ in range(r.randint(4, 24))] for _ in range(2)]
        self.prompts: list[list[int]] = []
        self.goals: list[Generate] = []
        self.forked: dict[int, int] = {}  # request -> earlier one whose prompt it forks
        self.aborted: set[int] = set()
        for i in range(r.randint(3, 6)):
            prompt = r.choice(stems)[: r.randint(1, 24)] + [
                r.randrange(3, vocab) for _ in range(r.randint(0, 8))
            ]
            if i and r.random() < 0.3:
                parent = r.randrange(i)
                if parent not in self.forked:
                    self.forked[i] = parent
                    prompt = self.prompts[parent][: r.randint(1, len(self.prompts[parent]))]
            self.prompts.append(prompt)
            warm = r.random() < 0.4
            sampling = SamplingParams(
                max_new_tokens=r.randint(1, 16), temperature=0.9 if warm else 0.0,
                top_p=r.choice([1.0, 0.8]), seed=r.randrange(1000), ignore_eos=True,
                frequency_penalty=r.choice([0.0, 0.0, 0.5]),
            )  # fmt: skip
            score = r.choice([-1, -1, 0, len(prompt) // 2])
            self.goals.append(Generate(sampling, score_from=score, top=0))
            if r.random() < 0.12:
                self.aborted.add(i)
        self.schedule = ScheduleConfig(
            schedule_policy=r.choice(POLICIES),
            chunked_prefill_size=r.choice([3, 16, 64]),
            max_running_requests=r.choice([3, 16]),
        )
        self.pool = r.choice([48, 64, 96, POOL])


def ask(
    plan: Plan, executor: Executor, info: EngineInfo, share: bool, together: bool
) -> tuple[Answers, EngineCore]:
    """Run the plan. ``together`` submits all at once on a small pool, with forks and aborts."""
    size = plan.pool if together else POOL
    info = EngineInfo(**{f: getattr(info, f) for f in info.__struct_fields__ if f != "capacity"},
                      capacity=size - size % info.page_size)  # fmt: skip
    engine = EngineCore(executor, info, plan.schedule, [b""] * info.vocab_size, share=share)
    answers: Answers = {}
    for i, (prompt, goal) in enumerate(zip(plan.prompts, plan.goals)):
        answers[i] = ([], [])
        if together and i in plan.forked:
            opening: Verb = ForkContext(plan.forked[i], i, len(prompt))
        else:
            opening = Open(i, ints(prompt).tobytes())
        forked_later = together and i in plan.forked.values()
        verbs: list[Verb] = [opening]
        if not forked_later:
            verbs.append(Advance(i, i, goal, close=True))
        assert not engine.handle(verbs)
        if not together:
            drain(engine, answers)
    if together:
        for parent in sorted(set(plan.forked.values())):
            assert not engine.handle([Advance(parent, parent, plan.goals[parent], close=True)])
        for i in sorted(plan.aborted):
            take(engine.step(), answers)
            if i in engine.store.contexts:
                take(engine.handle([Close(i)]), answers)
        drain(engine, answers)
    engine.store.check()
    assert engine.store.protected == 0
    return answers, engine


def drain(engine: EngineCore, answers: Answers) -> None:
    while engine.busy:
        take(engine.step(), answers)
        engine.store.check()


def take(events: list[Event], answers: Answers) -> None:
    for event in events:
        assert not isinstance(event, Failed), event
        if isinstance(event, Tokens):
            answers[event.request][0].extend(event.tokens)
        elif isinstance(event, PromptChunk):
            answers[event.request][1].extend(v for v in event.logprobs if v is not None)
        else:
            assert isinstance(event, Done)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_output_is_the_same_with_cache_without_and_alone(worker, chunk: int) -> None:
    executor, info = worker
    hits = retracted = 0
    for seed in range(chunk, HISTORIES // 2, CHUNKS):  # two page sizes share the histories
        plan = Plan(seed, info.vocab_size)
        alone, _ = ask(plan, executor, info, share=False, together=False)
        for share in (True, False):
            together, engine = ask(plan, executor, info, share=share, together=True)
            hits += engine.stats.cached_tokens
            retracted += engine.stats.retractions
            for i in range(len(plan.prompts)):
                tokens, scores = together[i]
                if i in plan.aborted:
                    assert tokens == alone[i][0][: len(tokens)], (seed, i, share)
                    continue
                assert tokens == alone[i][0], (seed, i, share, plan.schedule)
                assert scores == pytest.approx(alone[i][1], abs=1e-4), (seed, i, share)
    assert hits > 0, "no history hit the cache"
    if HISTORIES >= 100:
        assert retracted > 0, "no history was retracted"


def test_pool_is_part_of_the_plan() -> None:
    """The histories do vary what they are meant to vary."""
    plans = [Plan(seed, 160) for seed in range(60)]
    assert {p.pool for p in plans} == {48, 64, 96, POOL}
    assert {p.schedule.schedule_policy for p in plans} == set(POLICIES)
    assert any(p.forked for p in plans)
    assert any(p.aborted for p in plans)
