"""Messages between a client and the engine: verbs to the engine, events back.

In one process the objects are passed as they are. Between processes a frame is a list of messages
as msgspec MessagePack. The client chooses the ids of contexts and requests.

    verb       effect
    Open       make a context with these tokens, some of them encoded side by side
    ForkContext
               make a context with the first ``length`` tokens of another
    Append     add tokens at the end
    Truncate   cut to ``length`` tokens
    Advance    begin a request: compute KV for all tokens, then what the goal requests
    Park       claim the KV of an idle context that will go on when a tool has answered
    Close      close the context; a request on it ends as aborted; no effect if closed already
    Control    flush the cache, return statistics, ping, pause or continue
    LoadAdapter, UnloadAdapter
               make an adapter available for new contexts, or unavailable

    event      meaning
    PromptChunk
               log-probabilities of a run of the context's own tokens
    PromptProgress
               how much of a request's prompt is computed, if ``report_prompt``
    Tokens     newly generated tokens of a request, and their log-probabilities
    Done       terminal event of a request that succeeded; the context is idle again
    Failed     terminal event of a request that failed; the context is idle again
    Reply      answer to a Control, LoadAdapter or UnloadAdapter

Programs that hold KV pages (inferlets) have other verbs and events (``core/space_messages``).
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.media_marks import Medias
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.core.segments import Segments
from sglang.srt.core.space_messages import SpaceEvent, SpaceVerb

T = TypeVar("T")
TopPairs: TypeAlias = list[tuple[int, float]]


class Fill(msgspec.Struct, frozen=True, tag="fill"):
    """Compute the KV of all tokens and sample nothing."""


class Generate(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """Generate tokens until a limit, a stop or an end token.

    Attributes:
        sampling: sampling parameters with max_new_tokens, stops and the seed; ``n`` is ignored.
        top: number of most likely tokens to report with each token; -1: no log-probabilities.
        score_from: index from which to report log-probabilities of the context's tokens; -1: none.
        probe: ids whose log-probability to report at every reported position.
        interval: number of tokens in one event, after the first event.
        masked: log-probabilities are normalised over the tokens that the constraint allows.
        since: index of the context's token where the generation began that this request continues,
            for example after a tool's result: random numbers, penalties, ``min_new_tokens`` and the
            constraint count from there. -1: the generation begins after the context.
        generated: number of the context's last tokens that this generation has produced already,
            in an engine that was lost. They count against ``max_new_tokens``, and stops are
            searched in their text too; if that text already ends, the request ends at once.
            ``since`` must then be at or before the first of these tokens.
    """

    sampling: SamplingParams
    top: int = -1
    score_from: int = -1
    probe: tuple[int, ...] = ()
    interval: int = 1
    masked: bool = False
    since: int = -1
    generated: int = 0


class Score(msgspec.Struct, frozen=True, tag="score", omit_defaults=True):
    """Log-probabilities of the context's own tokens ``[start, len)``; token 0 has none."""

    start: int = 0
    top: int = 0
    probe: tuple[int, ...] = ()


class Distribution(msgspec.Struct, frozen=True, tag="distribution", omit_defaults=True):
    """The ``top`` most likely next tokens, and ``probe``, without sampling one."""

    top: int = 256
    probe: tuple[int, ...] = ()


POOLINGS = ("last", "mean")
EVERY = "every"


class Embed(msgspec.Struct, frozen=True, tag="embed", omit_defaults=True):
    """The model's last hidden states of all tokens, pooled into one vector: "last" takes the last
    token's, "mean" the average. ``EVERY`` is the vectors of all tokens, one after the other."""

    pooling: str = "last"


Goal: TypeAlias = Fill | Generate | Score | Distribution | Embed


class Open(msgspec.Struct, frozen=True, tag="open", omit_defaults=True):
    """Make a context. ``namespace``: a salt; contexts with different salts, or different adapters,
    share no KV. ``adapter``: name of a loaded adapter, or ""; if no adapter of this name is loaded,
    every request on the context is refused."""

    context: int
    tokens: bytes  # int32, native order
    namespace: str = ""
    segments: Segments = ()
    media: Medias = ()
    adapter: str = ""


class ForkContext(msgspec.Struct, frozen=True, tag="fork", omit_defaults=True):
    context: int
    child: int
    length: int = -1  # -1: all of it


class Append(msgspec.Struct, frozen=True, tag="append"):
    context: int
    tokens: bytes


class Truncate(msgspec.Struct, frozen=True, tag="truncate"):
    context: int
    length: int


class Advance(msgspec.Struct, frozen=True, tag="advance", omit_defaults=True):
    """Request one goal on an idle context.

    Attributes:
        close: close the context with the terminal event.
        arrived: time from which the request counts as waiting, in seconds on the machine's
            monotonic clock, at most now; 0: now. For example the time of its program's first
            request, so that a program that resumes does not queue as a newcomer.
        hint: facts about the application that the request is a call of.
        report_prompt: send a PromptProgress for each pass that computes a part of the prompt.
    """

    context: int
    request: int
    goal: Goal
    priority: int = 0
    close: bool = False
    arrived: float = 0.0
    hint: CallHint | None = None
    report_prompt: bool = False


class Park(msgspec.Struct, frozen=True, tag="park", omit_defaults=True):
    """Note that an idle context will go on once a tool has answered (InferCept, section 3).

    The claim is soft: it changes which KV is evicted first, and blocks no request. The claim ends
    with the context's next Advance or Close, or after ``deadline`` seconds; the context stays open.

    Attributes:
        tool: name of the tool; calls of one tool are expected to take similar times.
        owner: tenant that the tool belongs to; durations are learnt by owner and tool.
        expected: the client's estimate of the call's duration in seconds; 0: no estimate.
        deadline: seconds after which the claim ends.
    """

    context: int
    tool: str = ""
    owner: str = ""
    expected: float = 0.0
    deadline: float = 600.0


class Close(msgspec.Struct, frozen=True, tag="close"):
    context: int


class Control(msgspec.Struct, frozen=True, tag="control", omit_defaults=True):
    """Control the engine; the answer is a Reply with the same ``id``. ``op`` is one of "stats",
    "flush", "ping", "tree", "pause", "retract" and "continue". After "pause" no pass is planned
    until "continue"; "retract" pauses, and moves running requests back to the queue.

    ``limit``: most entries of each list in the answer to "tree".
    """

    id: int
    op: str
    limit: int = 0


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter", omit_defaults=True):
    """Load the adapter in directory ``path``. The Reply comes when contexts can be opened with the
    adapter, or says why it failed. ``pinned``: the adapter stays on the device."""

    id: int
    name: str
    path: str
    pinned: bool = False


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Unload an adapter: no further context can be opened with its name. The Reply comes when the
    last context with the adapter is closed, and the adapter and all its KV are removed."""

    id: int
    name: str


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter.

    Attributes:
        modules: last name parts of the model's modules that the adapter changes.
        pinned: the adapter stays on the device.
    """

    name: str
    path: str
    rank: int = 0
    bytes: int = 0
    modules: list[str] = []
    pinned: bool = False


Verb: TypeAlias = (
    Open
    | ForkContext
    | Append
    | Truncate
    | Advance
    | Park
    | Close
    | Control
    | LoadAdapter
    | UnloadAdapter
    | SpaceVerb
)


class Tokens(msgspec.Struct, tag="tokens", omit_defaults=True):
    """Newly generated tokens.

    ``held``: number of trailing bytes of the generated text that may turn out to belong to a stop
    string; a stream does not show them yet. ``taken``: number of tokens before these that are
    replaced: the new tokens begin with their bytes (``--jump-forward string``). ``stats``: the
    statistics so far (``cached_tokens`` ...), with the first sampled token only.
    """

    request: int
    tokens: list[int]
    held: int = 0
    logprobs: list[float] = []
    tops: list[TopPairs] = []
    probes: list[list[float]] = []
    taken: int = 0
    stats: RequestStats | None = None


class PromptChunk(msgspec.Struct, tag="prompt", omit_defaults=True):
    """Log-probabilities of a run of the context's own tokens, from ``start`` on.

    Each chunk of the prompt sends its own run, in order. All runs come before the first Tokens and
    before Done. The first entry is None if ``start`` is the context's ``tail`` (0 in a plain
    context), since no token precedes it.
    """

    request: int
    start: int
    logprobs: list[float | None] = []
    tops: list[TopPairs | None] = []
    probes: list[list[float] | None] = []


class PromptProgress(msgspec.Struct, tag="prompt_progress"):
    """Number of prompt tokens that have KV. No such event comes after the first sampled token.

    The number may fall: a retracted request computes again the tokens whose KV was evicted.

    Attributes:
        ready: leading tokens of the prompt that have KV, cached ones included.
        cached: tokens that came from the cache (``RequestCounts.cached_tokens``).
    """

    request: int
    ready: int
    cached: int


class Done(msgspec.Struct, tag="done", omit_defaults=True):
    """Terminal event of a request that has succeeded or was aborted.

    Attributes:
        reason: "stop", "length", "abort", "done" for a goal that samples nothing, or "error": the
            text so far is valid, and ``message`` says why no token could follow.
        matched: the stop string, the text that a stop pattern matched, or the stop token id.
        cut: number of bytes of generated text before the match; -1: the text is not cut.
        stats: final statistics.
        top, probe: result of a Distribution.
        embedding: result of an Embed, float32 in native byte order.
    """

    request: int
    reason: str
    matched: str | int | None = None
    cut: int = -1
    stats: RequestStats = msgspec.field(default_factory=RequestStats)
    top: TopPairs = []
    probe: list[float] = []
    message: str = ""
    embedding: bytes = b""


class Failed(msgspec.Struct, tag="failed", omit_defaults=True):
    """Terminal event of a request that has failed. ``code``: "invalid", "busy", "overloaded",
    "lost" (the engine is about to end) or "internal"."""

    request: int
    code: str
    message: str


class Reply(msgspec.Struct, tag="reply", omit_defaults=True):
    id: int
    ok: bool = True
    message: str = ""
    data: dict[str, Any] = {}


Event: TypeAlias = Tokens | PromptChunk | PromptProgress | Done | Failed | Reply | SpaceEvent

_encoder = msgspec.msgpack.Encoder()
_verbs: msgspec.msgpack.Decoder[list[Verb]] = msgspec.msgpack.Decoder(list[Verb])
_events: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])


def encode(messages: list[Any]) -> bytes:
    """Return a list of verbs, or of events, as one frame."""
    return _encoder.encode(messages)


def decode_verbs(frame: bytes) -> list[Verb]:
    """Decode a frame. Raises msgspec.DecodeError or ValidationError if it is malformed."""
    return _decoded(_verbs, frame)


def decode_events(frame: bytes) -> list[Event]:
    """Decode a frame. Raises msgspec.DecodeError or ValidationError if it is malformed."""
    return _decoded(_events, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    """Decode, and raise DecodeError also for invalid UTF-8 and deep nesting (msgspec does not)."""
    try:
        return decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
