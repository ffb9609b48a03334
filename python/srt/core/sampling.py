"""SamplingParams: everything a user may ask of one generation, declared once.

The HTTP layer, the offline engine, the scheduler and the sampler all read this one struct; a copy
with changes is made by ``msgspec.structs.replace``.
"""

from __future__ import annotations

import math

import msgspec
from sglang.srt.core.constraint import Constraint

MAX_STOPS = 128
MAX_STOP_CHARS = 1024
MAX_STOP_TOTAL = 4096  # characters of all stop strings: one automaton holds them
MAX_PATTERNS = 16  # one automaton holds them; its size has limits too (grammar/stop_automaton)
MAX_LOGIT_BIAS = 4096
MAX_N = 128
MAX_TOP_LOGPROBS = 128
SEED_LIMIT = 2**63
GREEDY_TEMPERATURE = 1e-6
MAX_TEMPERATURE = 1e6  # far from where float32 ends
MIN_REPETITION = 1e-3
SPECULATIONS = ("auto", "off", "ngram", "draft")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are drawn and when drawing ends.

    ``temperature`` below 1e-6 means greedy. ``top_k`` of -1 keeps every token. ``stop`` strings and
    ``stop_regex`` patterns are matched on the generated text, control tokens included, across token
    and UTF-8 boundaries. ``seed`` None lets the engine choose one; the same seed gives the same
    text whatever else is in the batch. ``speculation`` is who guesses tokens ahead ("ngram",
    "draft", "off", "auto": as the server does); it changes no text. ``constraint`` is what the
    whole text must be.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    speculation: str = "auto"
    constraint: Constraint | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether the distribution depends on which tokens came before, beyond the model."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def verify(self, vocab_size: int) -> None:
        """Raise ValueError, naming value, limit and fix, where a parameter cannot be honoured."""
        self._verify_limits()
        if self.constraint is not None:
            self.constraint.verify()
        self._verify_distribution()
        self._verify_tokens(vocab_size)

    def _verify_limits(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be 0 or more.")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens}; it must be between 0 and "
                f"max_new_tokens ({self.max_new_tokens})."
            )
        if not 1 <= self.n <= MAX_N:
            raise ValueError(f"n is {self.n}; it must be between 1 and {MAX_N}.")
        for name, values, most in (
            ("stop", self.stop, MAX_STOPS), ("stop_regex", self.stop_regex, MAX_PATTERNS),
        ):  # fmt: skip
            if len(values) > most:
                raise ValueError(f"{name} has {len(values)} entries; at most {most}.")
            for value in values:
                if value == "":
                    raise ValueError(f"{name} contains an empty string; remove it.")
                if len(value) > MAX_STOP_CHARS:
                    raise ValueError(
                        f"{name} has an entry of {len(value)} characters; at most {MAX_STOP_CHARS}."
                    )
        if self.speculation not in SPECULATIONS:
            raise ValueError(
                f"speculation is {self.speculation!r}; use one of {', '.join(SPECULATIONS)}."
            )
        total = sum(map(len, self.stop))
        if total > MAX_STOP_TOTAL:
            raise ValueError(f"stop has {total} characters in all; at most {MAX_STOP_TOTAL}.")
        if len(self.stop_token_ids) > MAX_STOPS:
            raise ValueError(
                f"stop_token_ids has {len(self.stop_token_ids)} entries; at most {MAX_STOPS}."
            )

    def _verify_distribution(self) -> None:
        for name in (
            "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty",
            "repetition_penalty",
        ):  # fmt: skip
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}; it must be a finite number.")
        if not 0.0 <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature}; it must be in [0, {MAX_TEMPERATURE:.0f}]."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be in (0, 1].")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p is {self.min_p}; it must be in [0, 1].")
        if self.top_k < 1 and self.top_k != -1:
            raise ValueError(f"top_k is {self.top_k}; it must be -1 (all) or at least 1.")
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if not -2.0 <= value <= 2.0:
                raise ValueError(f"{name} is {value}; it must be in [-2, 2].")
        if not MIN_REPETITION <= self.repetition_penalty <= 2.0:
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty}; it must be in "
                f"[{MIN_REPETITION}, 2]."
            )
        if self.seed is not None and not -SEED_LIMIT <= self.seed < SEED_LIMIT:
            raise ValueError(f"seed is {self.seed}; it must fit in a signed 64-bit integer.")

    def _verify_tokens(self, vocab_size: int) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(
                f"logit_bias has {len(self.logit_bias)} entries; at most {MAX_LOGIT_BIAS}."
            )
        for token, bias in self.logit_bias.items():
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"logit_bias names token {token}; the vocabulary ends at {vocab_size - 1}."
                )
            if not -100.0 <= bias <= 100.0:
                raise ValueError(f"logit_bias of token {token} is {bias}; use [-100, 100].")
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"stop_token_ids names {token}; the vocabulary ends at {vocab_size - 1}."
                )
