"""CompletionRequest: one prompt and the settings of its completions. A request is verified against
the engine's limits before anything is allocated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from sglang.ir.constraint import KINDS
from sglang.ir.sampling import PARAMETERS, SEED_LIMIT, SamplingParams
from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import Medias
from sglang.srt.core.messages import Open
from sglang.srt.core.nearest import nearest
from sglang.srt.core.segments import Segments, verify, verify_score
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.common_fields import (
    MaskedLogprobs,
    Priority,
    Probes,
    Rid,
    TopLogprobs,
    verify_fields,
)
from sglang.srt.requests.completion.constraint_settings import NAMES as CONSTRAINT_NAMES
from sglang.srt.requests.completion.constraint_settings import take_constraint
from sglang.srt.requests.completion.held_context import Resumption
from sglang.srt.requests.completion.token_tree import ScoredRows
from sglang.srt.requests.completion.whole_choices import verify_whole
from sglang.srt.requests.request_error import RequestError

MAX_LOGPROB_ENTRIES = 1 << 20  # positions x entries of one request's input log-probabilities
MAX_GENERATED_ENTRIES = 1 << 22  # the same for log-probabilities of generated tokens
UNREAD = 32  # tokens between two updates of an output that is only read when it is finished

CONSTRAINTS = KINDS  # all kinds of constraints, for messages to clients
RENAMED = {"sampling_seed": "seed", "max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
WITHOUT_EFFECT = ("spaces_between_special_tokens", "custom_params", "stream_interval")


def namespace_of(salt: str | None, extra: str | None) -> str:
    """Return the namespace of a ``cache_salt`` and an ``extra_key``. Different pairs have different
    namespaces. Without an extra key, the namespace is usually the salt itself."""
    salt, extra = salt or "", extra or ""
    if not extra and not salt.startswith("\0"):
        return salt
    return f"\0{len(salt)}:{salt}{extra}"


class Logprobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Log-probabilities that come with a completion.

    Attributes:
        top: number of most likely tokens at each reported position.
        start: report the prompt's tokens from this index on; -1: generated tokens only.
        probe: token ids reported at every position.
        masked: log-probabilities of generated tokens are normalized over the tokens that the
            constraint allows.
    """

    top: TopLogprobs = 0
    start: int = -1
    probe: Probes = ()
    masked: MaskedLogprobs = False


@dataclass(frozen=True)
class CompletionRequest:
    """One prompt and the settings of its ``sampling.n`` completions.

    Attributes:
        prompt: token ids, int32.
        logprobs: log-probabilities to report; None: none.
        rid: name to abort the request by; need not be unique.
        owner: tenant of the request; other tenants do not find its ``rid``.
        namespace: requests share cached KV only if their namespaces are equal.
        segments: texts of the prompt that are encoded in parallel.
        media: images and videos of the prompt.
        score_choices: score the constraint's choices as wholes (``choose``).
        adapter: name of the LoRA adapter, "" for none.
        interval: tokens between two updates of an output, after the first one.
        resumed: the parked context that the prompt continues; None: it continues none.
        program: name of the request's program; "": the program of ``resumed``, if any.
        hint: facts about the application whose call the request is.
        arrived: arrival of the application, in seconds of the monotonic clock: the request counts
            as waiting since then; 0: since its own arrival. ``resumed.arrived`` has precedence.
        prefixes: hashes of the prompt's beginnings that end at a variable, the shortest first.
        generated: the completion's first tokens, generated earlier (by a lost server, for example);
            they are a part of the output.
        scored: rows of tokens whose log-probabilities are wanted in place of a completion.
        report_prompt: report the progress of the prompt's computation, too.
    """

    prompt: Ints
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: Logprobs | None = None
    rid: Rid = ""
    priority: Priority = 0
    namespace: str = ""
    segments: Segments = ()
    score_choices: bool = False
    owner: str = ""
    media: Medias = ()
    adapter: str = ""
    interval: int = 1
    resumed: Resumption | None = None
    program: str = ""
    hint: CallHint | None = None
    arrived: float = 0.0
    prefixes: tuple[PrefixHash, ...] = ()
    generated: Ints = field(default_factory=ints)
    scored: ScoredRows | None = None
    report_prompt: bool = False

    @property
    def waiting_since(self) -> float:
        """Moment since which the request counts as waiting (``Advance.arrived``)."""
        return self.arrived if self.resumed is None else self.resumed.arrived

    def unread(self) -> CompletionRequest:
        """Return the request for a caller that reads only finished outputs. Outputs are then
        updated every ``UNREAD`` tokens, so that neither process wakes up for every token."""
        return replace(self, interval=UNREAD, report_prompt=False)

    def opening(self, context: int, generated: Sequence[int] = ()) -> Open:
        """Return the verb that opens the context, with tokens ``generated`` after the prompt."""
        tokens = (self.prompt + ints(generated)).tobytes()
        return Open(context, tokens, self.namespace, self.segments, self.media, self.adapter)

    def verified(self, info: EngineInfo) -> CompletionRequest:
        """Return the request with all numbers within the engine's bounds.

        ``max_new_tokens`` is reduced to the room after the prompt (the completion then ends by
        length). A ``top_k`` beyond the vocabulary's size is disabled. Raises RequestError.
        """
        verify_fields(self)
        verify_prompt(self.prompt, info)
        self._verify_segments(info.page_size)
        try:
            info.verify_media(self.media, self.segments)
        except ValueError as error:
            raise RequestError(f"{error}.", "image_data", "unsupported") from error
        sampling = self.sampling
        try:
            if sampling.max_new_tokens > 0 or self.logprobs is not None or self.scored:
                info.verify_purpose()
            sampling.verify(info.vocab_size)
            info.verify_speculation(sampling.speculation)
            if self.score_choices:
                verify_whole(sampling)
        except ValueError as error:
            raise RequestError(str(error), field_of(str(error))) from error
        self._verify_text()
        self._verify_logprobs(info.vocab_size)
        room = info.room(len(self.prompt), self.media)
        if room < 1 and sampling.max_new_tokens > 0:
            raise _too_long(str(len(self.prompt)), info, "no room is left to generate")
        limit = min(sampling.max_new_tokens, room)
        self._verify_generated(limit, info.vocab_size)
        if limit == sampling.max_new_tokens and sampling.top_k < info.vocab_size:
            return self
        sampling = replace(
            sampling,
            max_new_tokens=limit,
            min_new_tokens=min(sampling.min_new_tokens, limit),
            top_k=sampling.top_k if sampling.top_k < info.vocab_size else -1,
        )
        return replace(self, sampling=sampling)

    def _verify_generated(self, limit: int, vocab_size: int) -> None:
        given = self.generated
        if not given:
            return
        if self.sampling.n > 1 or self.score_choices or limit < 1:
            raise RequestError(
                "output_ids are those of one text: n must be 1, max_new_tokens at least 1, and "
                "choices_scoring cannot be whole.",
                "output_ids",
                "unsupported",
            )
        if self.logprobs is not None and self.logprobs.start >= 0:
            raise RequestError(
                f"logprob_start_len is {self.logprobs.start}; with output_ids it must be -1. The "
                "prompt's log-probabilities came before the first token.",
                "logprob_start_len",
            )
        if len(given) > limit:
            raise RequestError(
                f"output_ids has {len(given)} tokens, of at most {limit} that the text may have "
                "(max_new_tokens, or the room after the prompt).",
                "output_ids",
            )
        for token in (min(given), max(given)):
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"output_ids holds {token}; ids are 0 to {vocab_size - 1}.", "output_ids"
                )

    def _verify_segments(self, page_size: int) -> None:
        try:
            verify(self.segments, len(self.prompt), page_size)
        except ValueError as error:
            raise RequestError(f"parts: {error}.", "parts") from error

    def _verify_text(self) -> None:
        """Raise RequestError for a text with lone surrogates, which no message can carry."""
        fields = {"rid": (self.rid,), "cache_salt": (self.namespace,),
                  "stop": self.sampling.stop, "stop_regex": self.sampling.stop_regex}  # fmt: skip
        for name, values in fields.items():
            for value in values:
                if not value.isascii():
                    try:
                        value.encode()
                    except UnicodeEncodeError:
                        raise RequestError(f"{name} holds a lone surrogate.", name) from None

    def _verify_logprobs(self, vocab_size: int) -> None:
        if self.logprobs is None:
            return
        start, probe = self.logprobs.start, self.logprobs.probe
        verify_fields(self.logprobs, {"top": "top_logprobs", "probe": "token_ids_logprob"})
        if not -1 <= start <= len(self.prompt):
            raise RequestError(
                f"logprob_start_len is {start}; it must be -1 (output only) or an index into the "
                f"prompt of {len(self.prompt)} tokens.",
                "logprob_start_len",
            )
        try:
            verify_score(self.segments, start)
        except ValueError as error:
            raise RequestError(f"logprob_start_len: {error}.", "logprob_start_len") from error
        for token in probe:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"token_ids_logprob names {token}; the vocabulary ends at {vocab_size - 1}.",
                    "token_ids_logprob",
                )
        _verify_scored(self._scored)

    @property
    def _scored(self) -> int:
        """Number of log-probabilities of prompt tokens that are reported."""
        if self.logprobs is None or self.logprobs.start < 0:
            return 0
        each = 1 + self.logprobs.top + len(self.logprobs.probe)
        return (len(self.prompt) - self.logprobs.start) * each * self.sampling.n

    @property
    def _generated(self) -> int:
        """Most log-probabilities of generated tokens that are reported."""
        if self.logprobs is None:
            return 0
        each = 1 + self.logprobs.top + len(self.logprobs.probe)
        return self.sampling.max_new_tokens * each * self.sampling.n


def verified(requests: Sequence[CompletionRequest], info: EngineInfo) -> list[CompletionRequest]:
    """Verify the prompts of one client's request (``CompletionRequest.verified``), and the sum of
    their log-probabilities. Return the verified requests.

    Raises RequestError.
    """
    found = [request.verified(info) for request in requests]
    _verify_scored(sum(request._scored for request in found))
    _verify_generated(sum(request._generated for request in found))
    return found


def _verify_scored(entries: int) -> None:
    if entries > MAX_LOGPROB_ENTRIES:
        raise RequestError(
            f"{entries} input log-probabilities are requested; at most {MAX_LOGPROB_ENTRIES}. "
            "Raise logprob_start_len, or request fewer top entries, or of fewer prompts at once.",
            "logprob_start_len",
        )


def _verify_generated(entries: int) -> None:
    if entries > MAX_GENERATED_ENTRIES:
        raise RequestError(
            f"{entries} log-probabilities of new tokens may come back; at most "
            f"{MAX_GENERATED_ENTRIES}. Lower max_new_tokens or n, or request fewer top entries, or "
            "of fewer prompts at once.",
            "max_new_tokens",
        )


def verify_prompt(prompt: Ints, info: EngineInfo, first: int = 0) -> None:
    """Raise RequestError if ``prompt`` is empty, too long, or has an id out of range at index
    ``first`` or later."""
    if not prompt:
        raise RequestError("The prompt is empty; give at least one token.", "prompt")
    verify_length(len(prompt), info)
    ids = prompt[first:]
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < info.vocab_size:
            raise RequestError(
                f"The prompt holds token id {token}; ids are 0 to {info.vocab_size - 1}.", "prompt"
            )


def verify_length(length: int, info: EngineInfo, how: str = "") -> None:
    """Raise RequestError if a prompt of ``length`` tokens is too long. ``how``: text before the
    number in the message, such as "at least "."""
    if length > min(info.context_length, info.capacity):
        raise _too_long(f"{how}{length}", info, "shorten it")


def nth(sampling: SamplingParams, index: int) -> SamplingParams:
    """Return the sampling parameters of completion ``index``, with its own derived seed.

    Completion 0 keeps the request's seed, so its text equals that of ``n=1``. The others add
    multiples of 2^64 / golden ratio (the Weyl sequence of Steele et al. 2014, SplitMix), wrapped to
    int64.
    """
    seed = sampling.seed
    if seed is not None and index:
        mixed = (seed + index * 0x9E3779B97F4A7C15) % (1 << 64)
        seed = mixed - (1 << 64) if mixed >= SEED_LIMIT else mixed
    return replace(sampling, n=1, seed=seed)


def _token(key: object) -> int:
    """Return the token id of a key of ``logit_bias``; keys are texts in JSON. Raises
    RequestError."""
    if re.fullmatch("[0-9]{1,18}", str(key)):
        return int(str(key))
    raise RequestError(
        f'logit_bias has the key {key!r:.60}; give token ids, such as "5".', "logit_bias"
    )


def sampling_from(settings: Mapping[str, Any]) -> SamplingParams:
    """Convert a user's dict to SamplingParams: native names, a few aliases, None for a default.

    Raises RequestError; for an unknown name it suggests the nearest known one.
    """
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name in WITHOUT_EFFECT or value is None:
            continue
        field = RENAMED.get(name, name)
        first = values.setdefault(field, value)
        if type(first) is not type(value) or first != value:  # false is no 0
            names = " and ".join(given for given in settings if RENAMED.get(given, given) == field)
            raise RequestError(f"{names} are names of one thing and differ; give one.", name)
    for name in ("stop", "stop_regex"):
        if isinstance(values.get(name), str):
            values[name] = (values[name],)
    if isinstance(values.get("stop_token_ids"), int):
        values["stop_token_ids"] = (values["stop_token_ids"],)
    constraint = None
    if not values.keys().isdisjoint(CONSTRAINT_NAMES):
        try:
            constraint = take_constraint(values)
        except ValueError as error:
            raise RequestError(str(error), field_of(str(error))) from error
    for name in values:
        if name not in PARAMETERS:
            meant = nearest(name, [*PARAMETERS, *CONSTRAINT_NAMES])
            hint = f" Did you mean {meant!r}?" if meant else ""
            raise RequestError(f"Unknown sampling parameter {name!r}.{hint}", name)
    bias = values.get("logit_bias")
    if isinstance(bias, Mapping):
        values["logit_bias"] = {_token(token): value for token, value in bias.items()}
    try:
        params = msgspec.convert(values, SamplingParams)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"sampling_params: {error}.", _path(str(error))) from error
    return replace(params, constraint=constraint) if constraint else params


def _too_long(length: str, info: EngineInfo, advice: str) -> RequestError:
    room = min(info.capacity, info.context_length)
    why = " (what the KV cache holds)" if info.capacity < info.context_length else ""
    limit = f"this model's maximum context length is {room} tokens{why}"  # clients parse this
    return RequestError(
        f"The prompt has {length} tokens and {limit}; {advice}.",
        "prompt",
        "context_length_exceeded",
    )


def field_of(message: str) -> str | None:
    """Return the parameter that an error message begins with, for ``RequestError.param``; None if
    there is none."""
    word = re.split(r"[^a-z_]", message, maxsplit=1)[0]
    return word if word in (*PARAMETERS, *CONSTRAINT_NAMES) else None


def _path(message: str) -> str | None:
    """Return the field in msgspec's ``... - at `$.field``` suffix, None if there is none."""
    _, _, path = message.rpartition("`$.")
    return path.rstrip("`").split("[")[0].split(".")[0] or None if "`$." in message else None
