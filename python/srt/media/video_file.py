"""Frames of a video, by PyAV (the extra ``video``): evenly spaced, one at a time, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

MAX_FRAMES = 9000  # in the file: five minutes of 30 a second
MAX_DECODED = 1 << 34  # pixels of all frames that have to be decoded
# Formats that hold their own data. Playlists name other files and addresses, which a
# client must not make this process open.
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,ogg,flv,mpegvideo,h264,hevc"


class Clip(NamedTuple):
    """Frames taken of a video.

    Attributes:
        frames: RGB, decoded one by one. Raises ValueError where one is broken.
        length: how many there are.
        fps: how many of them there are for a second of the video.
    """

    frames: Iterator[Image.Image]
    length: int
    fps: float


def read(source: bytes | Path, num_frames: int, max_frames: int, max_pixels: int) -> Clip:
    """``num_frames`` frames, fewer where the video has fewer: frame ``i * total / num_frames`` for
    each ``i``, rounded down.

    Raises ValueError for more than ``max_frames``, for frames of more than ``max_pixels``, for
    videos of more than ``MAX_FRAMES``, and for what is no video; ImportError without PyAV.
    """
    if not 1 <= num_frames <= max_frames:
        raise ValueError(f"num_frames is {num_frames}; it must be from 1 to {max_frames}.")
    av = _av()
    data = source if isinstance(source, bytes) else source.read_bytes()
    problem = f"the {len(data)} bytes are no video that can be read"
    with _explained(problem), _opened(av, data) as container:
        if not container.streams.video:
            raise ValueError(f"the {len(data)} bytes hold no video, only other streams.")
        stream = container.streams.video[0]
        shape = stream.codec_context
        if shape is None:
            raise ValueError("the video's codec is unknown; send it in a common one, as H.264.")
        area = shape.width * shape.height
        _verify_size(shape.width, shape.height, max_pixels)
        times = _times(container, stream)
        step = float(stream.time_base or 0)
    total = len(times)
    count = min(num_frames, total)
    chosen = [i * total // count for i in range(count)]
    last = max(chosen) + 1
    if last * area > MAX_DECODED:
        raise ValueError(
            f"the video has {total} frames of {area} pixels; at most {MAX_DECODED} pixels are "
            f"decoded in all. Send a shorter or a smaller one."
        )
    seconds = (times[-1] - times[0]) * step * total / max(total - 1, 1)
    fps = count / seconds if seconds > 0 else 1.0
    return Clip(_frames(av, data, chosen, max_pixels), count, fps)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "videos are read by PyAV, which is not installed; "
            "run pip install -e '.[video]' in the project's folder"
        ) from error
    return av


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Raise any exception of a decoder as a ValueError."""
    try:
        yield
    except Exception as error:
        if type(error) is ValueError:  # ours
            raise
        told = getattr(error, "strerror", None) or error
        raise ValueError(f"{problem}: {told}.") from error


def _opened(av: Any, data: bytes) -> Any:
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "pipe"}
    return av.open(BytesIO(data), container_options=options, metadata_errors="replace")


def _times(container: Any, stream: Any) -> list[int]:
    """Presentation times of the frames, in the stream's unit, ascending. The whole container is
    read: its header may be wrong."""
    times = []
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            times.append(packet.pts if packet.pts is not None else packet.dts or 0)
        if len(times) > MAX_FRAMES:
            raise ValueError(
                f"the video has more than {MAX_FRAMES} frames, which is the limit; send a shorter "
                f"part of it, or one with fewer frames a second."
            )
    if not times:
        raise ValueError("the video has no frames; send one that has.")
    return sorted(times)


def _frames(av: Any, data: bytes, chosen: list[int], max_pixels: int) -> Iterator[Image.Image]:
    wanted = iter(chosen)
    following = next(wanted)
    with _explained("the video cannot be decoded"), _opened(av, data) as container:
        for number, frame in enumerate(container.decode(video=0)):
            _verify_size(frame.width, frame.height, max_pixels)
            if number < following:
                continue
            yield _upright(frame)
            following = next(wanted, -1)
            if following < 0:
                return
    raise ValueError(f"the video ends before frame {following}, which its container lists.")


def _upright(frame: Any) -> Image.Image:
    """The frame turned as its metadata says: phones film sideways."""
    image: Image.Image = frame.to_image()
    turns = getattr(frame, "rotation", 0) % 360
    return image.rotate(turns, expand=True) if turns else image


def _verify_size(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1 or width * height > max_pixels:
        raise ValueError(
            f"the video's frames have {width} x {height} pixels; from 1 to {max_pixels} are read. "
            f"Send a smaller one."
        )
