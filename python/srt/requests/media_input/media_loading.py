"""Loading of the images and videos of requests: bytes, then pixels (``media``), in separate
threads. The prompt then gets one placeholder token for each hidden state of a medium."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import Medias, MediaSpan
from sglang.srt.core.segments import Segment, Segments
from sglang.srt.requests.media_input.fetch import LATE, Fetch, fetch
from sglang.srt.requests.media_input.sources import MediaSource, decoded, read_file
from sglang.srt.requests.request_error import RequestError

if TYPE_CHECKING:
    from sglang.srt.media.processor import Placeholder, Prepared, Processor

FRAMES = 16  # default number of frames of a video
FETCHES, SHARE = 64, 16  # simultaneous fetches, and those of one tenant
GRACE = 0.5  # seconds after its time limit in which a fetch may still report its own error
QUEUED = 1024  # media that may wait to be decoded
DECODED = 1 << 29  # bytes of one prompt's decoded media
FETCHED = 1 << 30  # bytes of fetched media that wait to be decoded, or all that one prompt may have

T = TypeVar("T")


class MediaError(ValueError):
    """The model's files do not say how images are prepared."""


class Limits(Protocol):
    """Limits of a request's media (``config.sections.MediaConfig``)."""

    @property
    def max_media_per_prompt(self) -> int: ...
    @property
    def max_media_bytes(self) -> int: ...
    @property
    def max_image_pixels(self) -> int: ...
    @property
    def max_video_frames(self) -> int: ...
    @property
    def media_threads(self) -> int: ...
    @property
    def media_cache_bytes(self) -> int: ...
    @property
    def allowed_local_media_path(self) -> str: ...
    @property
    def allow_remote_media(self) -> bool: ...
    @property
    def allowed_media_domains(self) -> str: ...
    @property
    def media_fetch_timeout(self) -> float: ...


class Seen(NamedTuple):
    """A medium in the form that the model reads, and its cache key."""

    prepared: Prepared
    key: bytes


class Expanded(NamedTuple):
    """A prompt with one placeholder for each hidden state of its media."""

    tokens: Ints
    media: Medias = ()
    segments: Segments = ()


class Viewer:
    """Reader of media for one model. Call ``read`` on an event loop."""

    def __init__(self, processor: Processor, limits: Limits, vocab_size: int) -> None:
        self.limits, self._processor, self._vocab = limits, processor, vocab_size
        hosts = [host.strip().lower() for host in limits.allowed_media_domains.split(",")]
        self._hosts = frozenset(filter(None, hosts))
        self._cache = _Cache(limits.media_cache_bytes)
        self._decoding = ThreadPoolExecutor(limits.media_threads, "srt-media")
        self._fetching = ThreadPoolExecutor(FETCHES, "srt-fetch")
        # Limits of prompts decoded at once (each holds up to ``DECODED`` bytes) and of fetches.
        self._prompts = asyncio.Semaphore(limits.media_threads)
        self._connections = asyncio.Semaphore(FETCHES)
        self._shares = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, SHARE))
        self._waiting = self._held = 0  # media that wait, and bytes of those that were fetched
        self._most_held = max(FETCHED, limits.max_media_per_prompt * limits.max_media_bytes)

    def token(self, kind: str) -> Placeholder:
        """Return the placeholder of an image or a video; its id is -1 if the model does not take
        that kind."""
        return self._processor.video_token if kind == "video" else self._processor.image_token

    async def read(
        self, sources: Sequence[MediaSource], room: int | None = None, owner: str = ""
    ) -> list[Seen]:
        """Fetch and decode images and videos. Raises RequestError, also as soon as they turn out to
        have more than ``room`` tokens. ``owner``: the tenant whose share of fetches this takes."""
        self.verify(sources)
        self._waiting += len(sources)
        sizes: list[int] = []
        try:
            fetched = await _all([self._fetched(source, owner, sizes) for source in sources])
            async with self._prompts:
                return await self._decoded(sources, fetched, room)
        finally:
            self._waiting -= len(sources)
            self._held -= sum(sizes)

    async def _decoded(
        self, sources: Sequence[MediaSource], fetched: Sequence[bytes | None], room: int | None
    ) -> list[Seen]:
        """Decode media in order, at most one in each thread. The others wait undecoded."""
        alone = sum(source.kind == "image" for source in sources) == 1
        found: list[Seen] = []
        tokens = size = 0
        threads = self.limits.media_threads
        for start in range(0, len(sources), threads):
            some = slice(start, start + threads)
            found += await _all(
                _in(self._decoding, self._prepared, source, data, alone)
                for source, data in zip(sources[some], fetched[some], strict=True)
            )
            for source, seen in zip(sources[some], found[some], strict=True):
                tokens += seen.prepared.count
                size += len(seen.prepared.pixels)
                if room is not None and tokens > room:
                    raise source.refused(
                        f"the prompt's images and videos have {tokens} tokens so far and this "
                        f"model's maximum context length is {room} tokens; send fewer.",
                        "context_length_exceeded",
                    )
                if size > DECODED:
                    raise source.refused(
                        f"the prompt's images and videos have {size} bytes so far when decoded; at "
                        f"most {DECODED} are read. Send fewer, or smaller ones."
                    )
        return found

    def verify(self, sources: Sequence[MediaSource]) -> None:
        """Raise RequestError if there are too many media, or some that the model does not take."""
        most = self.limits.max_media_per_prompt
        if len(sources) > most:
            raise sources[most].refused(
                f"the prompt has {len(sources)} images and videos; at most {most} "
                "(--max-media-per-prompt)."
            )
        for source in sources:
            if self.token(source.kind).id < 0:
                raise source.refused(
                    f"this model takes no {source.kind}s; send frames as images.", "unsupported"
                )
            frames = min(self.limits.max_video_frames, self._processor.max_frames)
            if source.num_frames > frames:
                raise source.refused(
                    f"num_frames is {source.num_frames}; at most {frames} (--max-video-frames)."
                )
        if self._waiting + len(sources) > QUEUED:
            raise RequestError(
                f"{self._waiting} images and videos wait to be decoded; try again later.",
                code="queue_full",
            )

    async def _fetched(self, source: MediaSource, owner: str, sizes: list[int]) -> bytes | None:
        """Fetch the bytes of a remote source and append their number to ``sizes``; return None for
        any other source. Raises RequestError, also if all prompts together hold too many bytes."""
        if not source.remote:
            return None
        loop, slots = asyncio.get_running_loop(), (self._shares[owner], self._connections)

        def free(_: Future[bytes]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                for slot in slots:
                    loop.call_soon_threadsafe(slot.release)

        async with AsyncExitStack() as taken:
            for slot in slots:
                await taken.enter_async_context(slot)
            self._verify_held(source)
            work = self._fetching.submit(self._fetch, source, owner)
            try:
                # Normally the thread ends by itself with a precise error before this limit.
                limit = self.limits.media_fetch_timeout + GRACE
                data = await asyncio.wait_for(asyncio.wrap_future(work), limit)
            except asyncio.TimeoutError:
                raise source.refused(f"the URL cannot be fetched: {LATE}.") from None
            finally:
                if not work.done():  # the thread outlives the request
                    taken.pop_all()
                    work.add_done_callback(free)
        sizes.append(len(data))
        self._held += len(data)
        self._verify_held(source)
        return data

    def _verify_held(self, source: MediaSource) -> None:
        if self._held > self._most_held:
            raise source.refused(
                f"{self._held} bytes of fetched images and videos wait to be decoded, of at most "
                f"{self._most_held}; try again later.",
                "queue_full",
            )

    # -- in threads ------------------------------------------------------------------------------

    def _fetch(self, source: MediaSource, owner: str) -> bytes:
        limits = self.limits
        if not (limits.allow_remote_media or self._hosts):
            raise source.refused(
                "nothing is fetched from URLs; send a data URL, or start the server with "
                "--allow-remote-media or --allowed-media-domains.",
                "unsupported",
            )
        rules = Fetch(self._hosts, limits.max_media_bytes, limits.media_fetch_timeout, owner)
        try:
            return fetch(source.text, rules)
        except ValueError as error:
            raise source.refused(str(error)) from error

    def _prepared(self, source: MediaSource, data: bytes | None, alone: bool) -> Seen:
        limits = self.limits
        if data is None and source.file:
            data = read_file(source, limits.allowed_local_media_path, limits.max_media_bytes)
        elif data is None:
            data = decoded(source, limits.max_media_bytes)
        frames = source.num_frames or min(FRAMES, limits.max_video_frames)
        state = blake2b(f"{source.kind} {alone} {frames}\0".encode(), digest_size=16)
        state.update(data)
        name = state.digest()
        found = self._cache.get(name)
        if found is None:
            try:
                prepared = self._look(source.kind, data, frames, alone)
            except ValueError as error:
                raise source.refused(str(error)) from error
            except ImportError as error:
                raise source.refused(f"{error}.", "unsupported") from error
            found = Seen(prepared, prepared.key)
            self._cache.put(name, found)
        return found

    def _look(self, kind: str, data: bytes, frames: int, alone: bool) -> Prepared:
        from sglang.srt.media.image_file import picture
        from sglang.srt.media.video_file import read as read_video

        limits, processor = self.limits, self._processor
        most = min(limits.max_image_pixels, processor.max_pixels)
        if kind == "image":
            return processor.image(picture(data, most), alone)
        several = min(limits.max_video_frames, processor.max_frames)
        clip = read_video(data, min(frames, several), several, most)
        return processor.video(clip.frames, clip.fps)

    # -- tokens ----------------------------------------------------------------------------------

    def expand(
        self, tokens: Ints, seen: Sequence[Seen], segments: Segments = (), field: str = "prompt"
    ) -> Expanded:
        """Return the prompt with its media. Each placeholder in ``tokens`` stands for one medium,
        images and videos in order. Raises RequestError if there are more or fewer placeholders than
        media."""
        kinds = {self.token(kind).id: kind for kind in ("video", "image")}
        kinds.pop(-1, None)
        places = [i for i, token in enumerate(tokens) if token in kinds] if kinds else []
        queues = {kind: [s for s in seen if s.prepared.kind == kind] for kind in kinds.values()}
        for token, kind in kinds.items():
            found, given = tokens.count(token), len(queues[kind])
            if found != given:
                raise RequestError(
                    f"The prompt has {found} placeholders {self.token(kind).text!r} and the "
                    f"request {given} {kind}s; write one where each belongs.",
                    field,
                )
        out, media, starts = ints(), list[MediaSpan](), list[tuple[int, int]]()
        end = 0
        for place in places:
            out += tokens[end:place]
            one = queues[kinds[tokens[place]]].pop(0)
            media.append(one.prepared.at(len(out), one.key))
            # A placeholder is never looked up, so an id beyond the table does no harm.
            out += ints([tokens[place] if tokens[place] < self._vocab else 0]) * media[-1].count
            starts.append((place, media[-1].count - 1))
            end = place + 1
        out += tokens[end:]

        def moved(index: int) -> int:
            return index + sum(more for place, more in starts if place < index)

        moved_segments = tuple(Segment(moved(s.start), moved(s.sees)) for s in segments)
        return Expanded(out, tuple(media), moved_segments)


class _Cache:
    """Cache of decoded media by the digest of their bytes, at most ``most`` bytes of pixels. The
    least recently used are dropped first. Several threads may use it."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._lock = most, 0, threading.Lock()
        self._kept: OrderedDict[bytes, Seen] = OrderedDict()

    def get(self, name: bytes) -> Seen | None:
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
            return found

    def put(self, name: bytes, seen: Seen) -> None:
        size = len(seen.prepared.pixels)
        with self._lock:
            if size > self._most or name in self._kept:
                return
            self._kept[name] = seen
            self._bytes += size
            while self._bytes > self._most:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= len(oldest.prepared.pixels)


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all works. If one fails, the others are cancelled or not begun."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _in(pool: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
