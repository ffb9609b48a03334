"""Ablations: our engine with one of its parts switched off, to see what that part brings.

The switches are those of the SGLang paper (Fig. 8 and section 6.3). Where the engine has a setting
it is used; the others are hooks on one engine of this process (``harness/hooks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sglang

from benchmark.harness.claim import Claim, Item
from benchmark.harness.hooks.frontend import sequential, without_hints
from benchmark.harness.hooks.grammars import compiled_per_request
from benchmark.harness.hooks.matching import part_of_hits, whole_sequences
from benchmark.harness.hooks.patch import inner
from benchmark.harness.measure import Outcome
from benchmark.harness.side import Ours
from benchmark.models import EMBEDDED


@dataclass(frozen=True)
class Ablation:
    """A part that is switched off.

    Attributes:
        title: as the report calls it.
        settings: of the engine.
        hook: laid on the engine while no request is in flight, and taken off by its context.
        parallel: branches of a program run side by side.
        constrained: it changes nothing where texts are not held to a pattern.
    """

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    hook: Callable[[sglang.Engine], AbstractContextManager[object]] = nullcontext
    parallel: bool = True
    constrained: bool = False


FULL = Ablation("full", "Full optimizations")
_ALL = (
    FULL,
    # With nowhere to keep it, what a hint computes would be work for nothing; so none is sent.
    Ablation("no cache", "No cache", {"disable_radix_cache": True}, without_hints),
    Ablation(
        "no tree", "No tree structure", hook=lambda engine: whole_sequences(inner(engine))
    ),
    Ablation("fcfs", "FCFS schedule", {"schedule_policy": "fcfs"}),
    Ablation("random", "Random schedule", {"schedule_policy": "random"}),
    Ablation("no frontend parallelism", "No frontend parallelism", parallel=False),
    Ablation("no frontend hint", "No prefix sent ahead", hook=without_hints),
    Ablation(
        "no jump-forward", "No jump-forward", {"disable_jump_forward": True}, constrained=True
    ),
    Ablation(
        "compile per request", "Compiling for each request", hook=compiled_per_request,
        constrained=True,
    ),
)  # fmt: skip
ABLATIONS: dict[str, Ablation] = {ablation.name: ablation for ablation in _ALL}


def partial(rate: float) -> Ablation:
    """Use the first ``rate`` (0 to 1) of the tokens that match. Hints are sent at no rate: tokens
    that a hint computes are computed again where its hit is cut."""

    @contextmanager
    def hook(engine: sglang.Engine) -> Iterator[None]:
        with part_of_hits(inner(engine), rate), without_hints(engine):
            yield

    return Ablation(f"{100 * rate:g} % of hits", f"{100 * rate:g} % of the hits", hook=hook)


def together(name: str, title: str, parts: Sequence[Ablation]) -> Ablation:
    """All of ``parts`` at once; of a setting that several have, the last one's."""

    @contextmanager
    def hook(engine: sglang.Engine) -> Iterator[None]:
        with ExitStack() as stack:
            for part in parts:
                stack.enter_context(part.hook(engine))
            yield

    return Ablation(
        name, title, {key: value for part in parts for key, value in part.settings.items()}, hook,
        parallel=all(part.parallel for part in parts),
        constrained=all(part.constrained for part in parts),
    )  # fmt: skip


ALL_OFF = together(
    "all off", "All of them off",
    [ABLATIONS[name] for name in ("no cache", "fcfs", "no frontend parallelism",
                                  "no frontend hint", "no jump-forward")],
)  # fmt: skip


class Ablated(Ours):
    """The project's programs on an engine of this process with a part switched off."""

    def __init__(self, ablation: Ablation, engine: sglang.Engine, *, ignore_eos: bool) -> None:
        super().__init__(ablation.name, engine, ignore_eos=ignore_eos)
        self.ablation, self.engine = ablation, engine
        self._hook = ExitStack()
        self._hook.enter_context(ablation.hook(engine))

    def run(self, claim: Claim, items: Sequence[Item], mode: str) -> Outcome:
        if not self.ablation.parallel:
            claim = replace(claim, program=sequential(claim.program))
        return super().run(claim, items, mode)

    def close(self) -> None:
        self._hook.close()
        super().close()


def opened(ablation: Ablation, model_path: str | Path = EMBEDDED, **settings: Any) -> Ablated:
    """An engine with ``settings`` over the defaults, and ``ablation`` over those. Answers of other
    models than the embedded one are nonsense, so that end tokens are ignored."""
    embedded = Path(model_path) == EMBEDDED
    chosen = {"log_level": "warning", **settings, **ablation.settings}
    engine = sglang.Engine(model_path="" if embedded else str(model_path), **chosen)
    # Hits of the cache are those of requests: a select has one for each option, as in the paper.
    engine.scores_options = False
    return Ablated(ablation, engine, ignore_eos=not embedded)
