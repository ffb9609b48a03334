"""Texts encoded side by side on a real model: the same tokens and log-probabilities as transformers
gives with an explicit mask and explicit positions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.hf_models import make, save
from helpers.parallel import Item, grouped, segments_of, some_text, tokens_of, views_of
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config, ScheduleConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Done,
    Event,
    ForkContext,
    Generate,
    Open,
    PromptChunk,
    PromptProgress,
    Tokens,
    Verb,
)
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import local_executor
from sglang.srt.schedule.scheduler import Reserve

GROWTH = 6
VOCAB = 97
Answer = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def model() -> Any:
    return make("LlamaForCausalLM", seed=5, max_position_embeddings=512, num_hidden_layers=3)


@pytest.fixture(scope="module")
def executor(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = save(model, Path(tmp_path_factory.mktemp("model")))
    settings = {"max_total_tokens": 1024, "dtype": "float32", "device": "cpu"}
    return local_executor(Config.of(model_path=path, **settings))


@torch.no_grad()
def logprobs(model: Any, tokens: list[int], views: list[list[int]]) -> torch.Tensor:
    """Log-probabilities [vocab] of the token after ``tokens``, each of which attends to its
    view."""
    count = len(tokens)
    mask = torch.full((1, 1, count, count), torch.finfo(torch.float32).min)
    for i, view in enumerate(views[:count]):
        mask[0, 0, i, view] = 0.0
    places = torch.tensor([[len(view) - 1 for view in views[:count]]])
    out = model(torch.tensor([tokens]), attention_mask=mask, position_ids=places, use_cache=False)
    return out.logits[0, -1].log_softmax(-1)


def reference(model: Any, items: list[Item]) -> Answer:
    """Greedy tokens and their log-probabilities, every step computed from nothing."""
    tokens, views, values = tokens_of(items), views_of(items, GROWTH), []
    for _ in range(GROWTH):
        found = logprobs(model, tokens, views)
        tokens.append(int(found.argmax()))
        values.append(float(found[tokens[-1]]))
    return tokens[-GROWTH:], values


class Asker:
    """An engine over the model, and what came of each request."""

    def __init__(self, executor: Any, capacity: int = 1024, **schedule: Any) -> None:
        runner, info = executor
        facts = {name: getattr(info, name) for name in info.__struct_fields__}
        info = type(info)(**{**facts, "capacity": capacity})
        self.engine = EngineCore(runner, info, ScheduleConfig(**schedule), [b""] * info.vocab_size)
        self.events: dict[int, list[Event]] = {}

    def ask(self, number: int, items: list[Item], score_from: int = -1) -> None:
        sampling = SamplingParams(max_new_tokens=GROWTH, temperature=0.0, ignore_eos=True)
        tokens = ints(tokens_of(items)).tobytes()
        goal = Generate(sampling, top=0, score_from=score_from)
        verbs: list[Verb] = [
            Open(number, tokens, "", segments_of(items)),
            Advance(number, number, goal),
        ]
        assert not self.engine.handle(verbs)

    def run(self) -> None:
        while self.engine.busy:
            for event in self.engine.step():
                assert isinstance(event, (Tokens, PromptChunk, PromptProgress, Done)), event
                self.events.setdefault(event.request, []).append(event)
            self.engine.store.check()

    def answer(self, number: int) -> Answer:
        news = [event for event in self.events[number] if isinstance(event, Tokens)]
        return [e.tokens[0] for e in news], [e.logprobs[0] for e in news]

    def done(self, number: int) -> Done:
        event = self.events[number][-1]
        assert isinstance(event, Done)
        return event


def same(found: Answer, wanted: Answer) -> bool:
    return found[0] == wanted[0] and found[1] == pytest.approx(wanted[1], abs=1e-4)


def prompts(seed: int, count: int) -> list[list[Item]]:
    r = random.Random(seed)
    texts = [some_text(r, VOCAB) for _ in range(9)]
    return [grouped(r, texts[: r.randint(4, 9)]) for _ in range(count)]


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_alone_and_again_from_the_cache(executor: Any, model: Any, chunk: int) -> None:
    asker = Asker(executor, chunked_prefill_size=chunk)
    for number, items in enumerate(prompts(chunk, 6)):
        wanted = reference(model, items)
        for twice in (2 * number, 2 * number + 1):
            asker.ask(twice, items)
            asker.run()
            assert same(asker.answer(twice), wanted), items
        assert asker.done(twice).stats.cached_tokens == len(tokens_of(items)) - 1


def test_side_by_side_is_not_one_after_the_other(model: Any) -> None:
    """The reference tells them apart, so the other tests can."""
    for items in prompts(3, 4):
        if segments_of(items):
            assert not same(reference(model, items), reference(model, [tokens_of(items)]))


def test_many_at_once_in_little_memory(executor: Any, model: Any) -> None:
    some = prompts(11, 8)
    asker = Asker(executor, capacity=64, chunked_prefill_size=7)
    asker.engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)  # must retract
    for number, items in enumerate(some):
        asker.ask(number, items)
    asker.run()
    for number, items in enumerate(some):
        assert same(asker.answer(number), reference(model, items)), items
    assert asker.engine.stats.retractions > 0
    assert asker.engine.stats.cached_tokens > 0


def test_a_long_beginning_is_read_once_by_all_texts(executor: Any, model: Any) -> None:
    r = random.Random(2)
    long = [r.randrange(VOCAB) for _ in range(200)]
    items: list[Item] = [long, [some_text(r, VOCAB) for _ in range(20)], [1, 2], [[3], [4, 5]], [6]]
    asker = Asker(executor)
    asker.ask(1, items)
    asker.run()
    assert same(asker.answer(1), reference(model, items))


def test_forks_and_scores(executor: Any, model: Any) -> None:
    items: list[Item] = [[1, 2, 3], [[4, 5], [6, 7, 8]], [9, 10, 11, 12]]
    asker = Asker(executor)
    asker.ask(1, items, score_from=8)
    asker.engine.handle([ForkContext(1, 2, 12)])
    asker.ask(3, [*items[:2], [9]])
    asker.run()
    goal = Generate(SamplingParams(max_new_tokens=GROWTH, temperature=0.0, ignore_eos=True), top=0)
    asker.engine.handle([Advance(2, 2, goal)])
    asker.run()
    wanted = reference(model, items)
    assert same(asker.answer(1), wanted)
    assert same(asker.answer(2), wanted)
    (prompt,) = [event for event in asker.events[1] if isinstance(event, PromptChunk)]
    tokens, views = tokens_of(items), views_of(items)
    values = [float(logprobs(model, tokens[:i], views)[tokens[i]]) for i in (9, 10, 11)]
    assert prompt.logprobs[0] is None
    assert prompt.logprobs[1:] == pytest.approx(values, abs=1e-4)
