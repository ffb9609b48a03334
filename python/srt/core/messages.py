"""The vocabulary between a program and the engine: verbs one way, events the other.

In process they are handed over as they are; between processes they travel as msgspec MessagePack,
a list of messages a frame. Contexts and requests are numbered by the client.

    verb       effect
    Open       a new context with these tokens, some of them encoded side by side
    ForkContext
               a new context with the first ``length`` tokens of another
    Append     tokens at the end
    Truncate   cut to ``length``
    Advance    a request: compute the context's work and then what the goal says
    Park       an idle context will go on once a tool has answered: a claim on its KV
    Close      the context is gone; a request on it ends as aborted; again: no effect
    Control    flush the cache, ask for statistics, ping, pause and continue
    LoadAdapter, UnloadAdapter
               an adapter that contexts may be opened with, from now on or no longer

    event      meaning
    PromptChunk
               log-probabilities of a run of the context's own tokens
    PromptProgress
               how much of a request's prompt is computed, where that was wanted
    Tokens     newly generated tokens of a request, log-probabilities with them
    Done       the request's one terminal event; the context is idle again
    Failed     the request's one terminal event; the context is idle again
    Reply      answer to a Control, LoadAdapter or UnloadAdapter

Programs that hold KV pages have verbs and events of their own (``core/space_messages``).
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
    """Compute the KV of all tokens and stop there."""


class Generate(msgspec.Struct, frozen=True, tag="generate", omit_defaults=True):
    """Generate tokens until a limit, a stop or an end token.

    Attributes:
        sampling: includes max_new_tokens, stops and the seed; ``n`` is the program's business.
        top: top log-probabilities with each token; -1 for no log-probabilities.
        score_from: also report log-probabilities of the context's tokens from this index; -1 not.
        probe: ids whose log-probability is wanted at every reported position.
        interval: tokens in one event, after the first.
        masked: log-probabilities are those among the tokens that the constraint allows.
        since: index of the context's token where the generation began that this request goes on
            with, after a tool's result for example: random numbers, penalties, ``min_new_tokens``
            and the constraint count from there. -1: it begins after the context.
        generated: number of the context's last tokens that this generation has produced already,
            in an engine that was lost. They count against ``max_new_tokens``, and stops are
            searched in their text too; where they end it already, the request ends at once.
            ``since`` is then at or before the first of them.
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
    """``namespace``: a salt; contexts with different ones share no KV, and neither do those with
    different adapters. ``adapter``: its name; where none of that name is loaded, every request on
    the context is refused."""

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
        close: the context is closed with the terminal event.
        arrived: moment from which on the request counts as waiting, in seconds on the machine's
            monotonic clock: that of its program's first request, say, so that what resumes does not
            queue as a newcomer. At most now; 0: now.
        hint: facts about the application that the request is a call of.
        report_prompt: each pass that computes a part of the prompt sends a PromptProgress.
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

    The claim is soft: it decides what memory gives up first, and blocks no request. It ends with
    the context's next Advance or Close, or after ``deadline`` seconds; the context stays open.

    Attributes:
        tool: name of the tool; calls of one tool are expected to take alike long.
        owner: tenant whose tool it is; durations are learnt by owner and tool.
        expected: seconds that the call will take, by the client; 0: it does not say.
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
    """``op`` is one of "stats", "flush", "ping", "tree", "pause", "retract" and "continue";
    answered by a Reply with the same ``id``. Under "pause" no pass is planned until "continue";
    "retract" pauses, and the running requests give their memory back and wait.

    ``limit`` is how many entries of each list a "tree" may have.
    """

    id: int
    op: str
    limit: int = 0


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter", omit_defaults=True):
    """Read the adapter in directory ``path``. Answered by a Reply when contexts can be opened with
    it, or with why not. ``pinned``: it stays on the device."""

    id: int
    name: str
    path: str
    pinned: bool = False


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """No context can be opened with it any more. Answered by a Reply when the last one that was has
    been closed, and the adapter and all KV of it are gone."""

    id: int
    name: str


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter.

    Attributes:
        modules: those that it changes, by the last part of their names.
        pinned: it stays on the device.
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

    ``held`` is how many trailing bytes of the generated text so far may turn out to belong to a
    stop string: a stream does not show them yet. ``taken`` tokens before these are void: their
    bytes are those that the new ones begin with (``--jump-forward string``). ``stats`` comes with
    the first sampled token: the statistics so far, ``cached_tokens`` among them.
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
    before Done. The first entry is None where ``start`` is the context's ``tail``: nothing precedes
    token 0.
    """

    request: int
    start: int
    logprobs: list[float | None] = []
    tops: list[TopPairs | None] = []
    probes: list[list[float] | None] = []


class PromptProgress(msgspec.Struct, tag="prompt_progress"):
    """The part of a request's prompt that is computed. None comes after the first sampled token.

    The number may fall: a request that was retracted computes again what the cache has lost.

    Attributes:
        ready: tokens of the prompt from its beginning, those of the cache included.
        cached: tokens that came from the cache (``RequestCounts.cached_tokens``).
    """

    request: int
    ready: int
    cached: int


class Done(msgspec.Struct, tag="done", omit_defaults=True):
    """The request has ended well.

    Attributes:
        reason: "stop", "length", "abort", "done" for a goal that samples nothing, or "error": the
            text so far is valid, and ``message`` says why no token could follow.
        matched: the stop string, the pattern's text or the stop token id.
        cut: bytes of generated text before the match; -1 where the text is not cut.
        stats: final statistics.
        top, probe: of a Distribution.
        embedding: of an Embed, float32 in native order.
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
    """The request has ended badly. ``code``: "invalid", "busy", "overloaded", "lost" (the engine
    is about to end) or "internal"."""

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
    """One frame. Any list of verbs or of events."""
    return _encoder.encode(messages)


def decode_verbs(frame: bytes) -> list[Verb]:
    """Raises msgspec.DecodeError (ValidationError included) on a malformed frame."""
    return _decoded(_verbs, frame)


def decode_events(frame: bytes) -> list[Event]:
    """Raises msgspec.DecodeError (ValidationError included) on a malformed frame."""
    return _decoded(_events, frame)


def _decoded(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    """msgspec lets two other errors through: of text that is no UTF-8, and of deep nesting."""
    try:
        return decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
