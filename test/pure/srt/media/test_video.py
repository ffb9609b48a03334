"""Frames of videos: the right ones, the right way up, within bounds; no file but the one sent."""

from __future__ import annotations

import builtins
import contextlib
import io
import random
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglang.srt.media.video_file import MAX_FRAMES, read

av = pytest.importorskip("av")
MOST = 1 << 20


def film(count: int, codec: str = "libx264", format: str = "mp4", side: int = 32) -> bytes:
    """Ten frames a second, frame ``i`` of grey ``20 + 5 * i``."""
    out = io.BytesIO()
    with av.open(out, "w", format=format) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width = stream.height = side
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        if codec == "libx264":
            stream.options = {"g": "12", "bf": "2"}
        for i in range(count):
            grey = np.full((side, side, 3), (20 + 5 * i) % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return out.getvalue()


CLIP = film(40)


@pytest.mark.parametrize(
    ("codec", "format"),
    [("libx264", "mp4"), ("libx264", "matroska"), ("mpeg4", "avi"), ("libvpx", "webm"),
     ("mpeg4", "mpegts"), ("gif", "gif")],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 7])
def test_frames_are_evenly_spaced(codec: str, format: str, count: int) -> None:
    clip = read(film(40, codec, format), count, 64, MOST)
    greys = [np.asarray(frame).mean() for frame in clip.frames]
    assert clip.length == count
    assert clip.fps == pytest.approx(count / 4, rel=0.01)
    assert np.abs(np.array(greys) - [20 + 5 * (i * 40 // count) for i in range(count)]).max() <= 3


def test_a_short_video_gives_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "short.mp4").write_bytes(film(3))
    clip = read(tmp_path / "short.mp4", 8, 64, MOST)
    assert clip.length == len(list(clip.frames)) == 3
    assert clip.fps == pytest.approx(10)


def test_what_was_filmed_sideways_is_turned() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        image = np.zeros((32, 64, 3), dtype=np.uint8)
        image[:16, :32] = 250  # bright above left
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    data = bytearray(out.getvalue())
    # The track's matrix (ISO 14496-12, 8.3.2), for a quarter turn clockwise.
    place = data.index(b"tkhd") + 44
    data[place : place + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)
    [frame] = read(bytes(data), 1, 64, MOST).frames
    assert frame.size == (32, 64)
    shown = np.asarray(frame).mean(axis=2)
    assert shown[:32, 16:].mean() > 200  # above right
    assert shown[:32, :16].mean() < 50


@pytest.mark.parametrize("count", [0, -1, 65, 10**4])
def test_too_many_frames_are_refused_before_anything_is_read(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_frames is {count}; it must be from 1 to 64"):
        read(b"", count, 64, MOST)


def test_a_long_video_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_FRAMES} frames, which is the limit"):
        read(film(MAX_FRAMES + 1, "mpeg4", "avi", side=16), 4, 64, MOST)


def test_large_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="32 x 32 pixels; from 1 to 1000"):
        read(CLIP, 4, 64, 1000)


@pytest.mark.parametrize("data", [b"", b"hello" * 50, CLIP[:100], CLIP[: len(CLIP) // 2]])
def test_what_is_no_video_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no video that can be read"):
        read(data, 4, 64, MOST)


def test_playlists_fetch_nothing(tmp_path: Path) -> None:
    """Formats that name other files and addresses are not opened, even if a server listens
    there."""
    (tmp_path / "secret.mp4").write_bytes(CLIP)
    asked: list[None] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)

        def listen() -> None:
            with contextlib.suppress(OSError):
                server.accept()[0].close()
                asked.append(None)

        listener = threading.Thread(target=listen)
        listener.start()
        for target in (tmp_path / "secret.mp4", f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"):
            for text in (
                f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{target}\n#EXT-X-ENDLIST\n",
                f"ffconcat version 1.0\nfile '{target}'\n",
                "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 9\n",
            ):
                with pytest.raises(ValueError, match="no video that can be read"):
                    read(text.encode(), 1, 64, MOST)
        listener.join()
    assert not asked


@pytest.mark.slow
def test_mutations_end_well() -> None:
    r = random.Random(0)
    data = film(6, side=16)
    read_whole = 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(r.randint(1, 8)):
            broken[r.randrange(len(broken))] = r.randrange(256)
        try:
            clip = read(bytes(broken), 3, 64, MOST)
            read_whole += len(list(clip.frames)) == clip.length
        except ValueError:
            continue
    assert read_whole > 0


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "av":
            raise ImportError("no av")
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install -e '.\[video\]'"):
        read(CLIP, 4, 64, MOST)
