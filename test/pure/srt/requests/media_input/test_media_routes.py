"""Images and videos over HTTP: every API, their positions in prompts, limits, files, and addresses
that are never fetched. The worker has no model; its KV is the tokens of its rows."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import sglang as sgl
from helpers.fake_worker import contents
from helpers.http_server import Served, is_error, serve_text
from helpers.seeing import IMAGE, VIDEO, movie, picture, url, write_model
from PIL import Image
from sglang.srt.config import Config
from sglang.srt.config.sections import MediaConfig
from sglang.srt.core.batch import Row
from sglang.srt.media.processor import Prepared
from sglang.srt.media.processor_registry import processor_of
from sglang.srt.requests.media_input import fetch as remote
from sglang.srt.requests.media_input import media_loading as viewing
from sglang.srt.requests.media_input.fetch import Fetch, fetch, public, resolved, verified
from sglang.srt.requests.media_input.media_loading import Viewer
from sglang.srt.requests.media_input.sources import MediaSource, read_file
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

A, B = picture(28, 28, 1), picture(28, 28, 2)
COUNT = 36  # tokens of either: 16 of the whole, 4 lines of 5 of its tiles
GREEDY = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "shown").mkdir()
    (root / "shown" / "a.png").write_bytes(A)
    (root / "secret.png").write_bytes(B)
    (root / "shown" / "link.png").symlink_to(root / "secret.png")
    (root / "shown" / "inner.png").symlink_to(root / "shown" / "a.png")
    os.mkfifo(root / "shown" / "pipe.png")
    (root / "shown" / "long.png").write_bytes(bytes(1 << 19))
    return root


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Served]:
    path = write_model(tmp_path_factory.mktemp("model"))
    config = Config.of(
        model_path=path, max_media_per_prompt=3, max_media_bytes=300_000, max_image_pixels=20_000,
        max_video_frames=8, allowed_local_media_path=str(files / "shown"),
    )  # fmt: skip
    tokenizer = Tokenizer(Path(path))
    with serve_text(Path(path), config, tokenizer, vision=True) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


@pytest.fixture
def rows(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Rows that the worker got."""
    found: list[Row] = []
    run = served.worker.run

    def note(batch: Any) -> Any:
        found.extend(batch.rows)
        return run(batch)

    monkeypatch.setattr(served.worker, "run", note)
    return found


def generate(http: httpx.Client, text: Any, **body: Any) -> Any:
    reply = http.post("/generate", json={"text": text, "sampling_params": GREEDY, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(http: httpx.Client, content: Any, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": content}]
    return http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 3, **body})


def part(data: bytes = A) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data)}}


def refused(reply: httpx.Response, words: str) -> None:
    assert words in is_error(reply, 400)["message"]


# -- every API ------------------------------------------------------------------------------------


def test_all_apis_say_the_same(served: Served, http: httpx.Client, rows: list[Row]) -> None:
    http.post("/flush_cache")
    text = "<|im_start|>user\n<image>\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    meta = generate(http, text, image_data=url(A))["meta_info"]
    whole = served.tokenizer.encode(text)
    assert meta["prompt_tokens"] == len(whole) + COUNT - 1
    assert meta["cached_tokens"] == 0
    ask = {"type": "text", "text": "What is it?"}
    reply = chat(http, [part(), ask])
    assert reply.json()["usage"]["prompt_tokens"] == meta["prompt_tokens"]
    cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == meta["prompt_tokens"] - 1, "the second question computes no image token"
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(A).decode()}
    for path, body in (
        ("/v1/messages", {"max_tokens": 3, "messages": [{"role": "user", "content": [
            {"type": "image", "source": source}, ask]}]}),
        ("/v1/responses", {"max_output_tokens": 3, "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url(A)},
            {"type": "input_text", "text": "What is it?"}]}]}),
        ("/v1/chat/completions", {"max_tokens": 3, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": url(A)}, ask]}]}),
    ):  # fmt: skip
        rows.clear()
        assert http.post(path, json=body).status_code == 200
        assert len(rows[0].tokens) == 1, path
        assert rows[0].start == cached, path


def test_two_images_of_one_size_and_their_order(http: httpx.Client, rows: list[Row]) -> None:
    shown = set()
    for images in ([A, B], [B, A], [A, A], [B, B]):
        http.post("/flush_cache")
        rows.clear()
        generate(http, "<image> or <image>?", image_data=list(map(url, images)))
        shown.add(tuple(contents(rows[0])))
        assert sum(piece.count for piece in rows[0].pieces) == 2 * COUNT
    assert len(shown) == 4
    assert generate(http, "<image>?", image_data=url(A))["meta_info"]["cached_tokens"] == 0


def test_forms_of_image_data(http: httpx.Client, rows: list[Row]) -> None:
    bare = base64.b64encode(A).decode()
    for value in (url(A), bare, [url(A)], [[bare]], {"url": url(A)}, [None, url(A)]):
        generate(http, "<image>x", image_data=value)
        assert rows[-1].context
    both = generate(http, ["<image>x", "<image>y"], image_data=url(A))
    assert [one["meta_info"]["prompt_tokens"] for one in both] == [COUNT + 1] * 2
    listed = generate(http, ["<image>x", "y", "<image><image>"], image_data=[
        url(A), None, [url(A), url(B)]])  # fmt: skip
    counts = [one["meta_info"]["prompt_tokens"] for one in listed]
    assert counts == [COUNT + 1, 1, 2 * COUNT]
    ids = {"input_ids": [5, IMAGE, 6], "image_data": url(A), "sampling_params": GREEDY}
    assert http.post("/generate", json=ids).json()["meta_info"]["prompt_tokens"] == COUNT + 2
    parts = {"parts": ["<image> a", ["b", "<image> c"], "d"], "image_data": [url(A), url(B)],
             "sampling_params": GREEDY}  # fmt: skip
    rows.clear()
    assert http.post("/generate", json=parts).status_code == 200
    assert sum(len(row.pieces) for row in rows) >= 1


def test_videos(http: httpx.Client, rows: list[Row]) -> None:
    data = url(movie(6), "image/gif")
    counts = {}
    for frames in (2, 3, 8):
        given = {"url": data, "num_frames": frames}
        answer = generate(http, "<video> <image>", video_data=given, image_data=url(A))
        counts[frames] = answer["meta_info"]["prompt_tokens"] - COUNT - 1
    assert counts == {2: 8, 3: 12, 8: 24}, "2 x 2 a frame, of 6"
    reply = chat(http, [{"type": "video_url", "video_url": {"url": data, "num_frames": 2}}])
    assert reply.status_code == 200
    assert any(row.pieces and row.pieces[0].media.kind == "video" for row in rows)
    assert VIDEO in [token for row in rows for token in row.tokens]


def test_an_image_is_told_by_what_is_shown(http: httpx.Client, rows: list[Row]) -> None:
    http.post("/flush_cache")
    generate(http, "a<image>b", image_data=url(A))
    (first,) = [row for row in rows if row.pieces]
    assert len(first.tokens) == COUNT + 2
    shown = contents(first)
    assert [token >= 1000 for token in shown] == [False] + [True] * COUNT + [False]
    assert first.pieces[0].media.shape == (2, 3, 28, 28) or first.pieces[0].media.pixels


# -- templates ------------------------------------------------------------------------------------

LISTS = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] if c['type'] != 'text' %}"
    "<{{ c['type'] }}>\n{% endfor %}{% for c in m['content'] if c['type'] == 'text' %}"
    "{{ c['text'] }}{% endfor %}\n{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (LISTS, "user: <image>\n<image>\nabcuser: d"),
        (
            "{% for m in messages %}U {{ m['content'] }}\n{% endfor %}",
            "U a<image>\nb<image>\nc\nU d\n",
        ),
    ],
)
def test_templates_of_parts_and_of_text(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, template: str, text: str
) -> None:
    path = Path(served.state.runtime.config.model.model_path) / "t.jinja"
    path.write_text(template)
    tokenizer = Tokenizer(path.parent, str(path))
    monkeypatch.setattr(served.state.runtime, "tokenizer", tokenizer)
    content = [{"type": "text", "text": "a"}, part(A), {"type": "text", "text": "b"}, part(B),
               {"type": "text", "text": "c"}]  # fmt: skip
    messages = [{"role": "user", "content": content}, {"role": "user", "content": "d"}]
    assert http.post("/apply-template", json={"messages": messages}).json() == {"prompt": text}


def test_23_placeholders_in_texts_of_users(
    served: Served, http: httpx.Client, rows: list[Row]
) -> None:
    for text in ("<image>", "a<image><video>b", "<ima", "<|image_pad|>"):
        for content in (
            text,
            [{"type": "text", "text": text}],
            [part(), {"type": "text", "text": text}],
        ):
            rows.clear()
            assert chat(http, content).status_code == 200
            pieces = sum(piece.count for row in rows for piece in row.pieces)
            shown = [token for row in rows for token in contents(row)]
            assert IMAGE not in shown
            assert VIDEO not in shown
            assert pieces in (0, COUNT)
    refused(http.post("/generate", json={"text": "a <image> b"}),
            "1 placeholders '<image>' and the request 0 images")  # fmt: skip
    refused(http.post("/generate", json={"text": "<image> b", "image_data": [url(A), url(B)]}),
            "1 placeholders '<image>' and the request 2 images")  # fmt: skip
    refused(http.post("/generate", json={"text": "b", "video_data": url(movie(), "image/gif")}),
            "0 placeholders '<video>' and the request 1 videos")  # fmt: skip


# -- limits ---------------------------------------------------------------------------------------


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header says what its few bytes do not hold."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 16))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def saved(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


HOSTILE = {
    "bomb": (bomb(60_000, 60_000), "too large"),
    "small bomb": (bomb(12_000, 10_000), "at most 20000"),
    "more pixels": (picture(200, 101), "at most 20000"),
    "no height": (bomb(5, 0), "image_data"),
    "truncated": (A[: len(A) // 2], "cannot be decoded"),
    "animated": (movie(3), "animated"),
    "text": (b"<svg/>", "are no PNG"),
    "empty": (b"", "0 bytes"),
    "large": (bytes(300_001), "--max-media-bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_27_hostile_images(http: httpx.Client, name: str) -> None:
    data, words = HOSTILE[name]
    refused(http.post("/generate", json={"text": "<image>", "image_data": url(data)}), words)
    reply = chat(http, [part(data)])
    assert is_error(reply, 400)["param"] == "messages"
    assert "messages[0].content[0].image_url" in reply.text


def test_27_an_image_of_one_pixel(http: httpx.Client) -> None:
    assert chat(http, [part(picture(1, 1))]).status_code == 200


def test_28_hostile_videos(http: httpx.Client) -> None:
    frame = b"!\xf9\4\4\x0a\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0"  # one pixel
    head = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff"
    many = head + frame * 10_000 + b";"
    for data, frames, words in (
        (many, 4, "frames"),
        (movie(4), 10_000, "num_frames is 10000; at most 8 (--max-video-frames)"),
        (movie(4), -1, "num_frames is -1"),
        (movie(2, 150, 150), 2, "20000"),
        (b"nothing", 2, "no video"),
    ):
        given = {"url": url(data, "video/mp4"), "num_frames": frames}
        refused(http.post("/generate", json={"text": "<video>", "video_data": given}), words)


def test_counts(http: httpx.Client) -> None:
    refused(chat(http, [part()] * 4), "4 images and videos; at most 3 (--max-media-per-prompt)")
    error = is_error(http.post("/generate", json={
        "text": "<image>" * 3 + "x " * 940, "image_data": [url(A)] * 3}), 400)  # fmt: skip
    assert error["code"] == "context_length_exceeded"
    assert f"{3 * COUNT + 1880} tokens" in error["message"] or "1024" in error["message"]
    for value in (5, [5], {"url": 5}, "data:image/png,x", "not base64!"):
        body = {"text": "<image>", "image_data": value}
        assert is_error(http.post("/generate", json=body), 400)["param"] == "image_data"
    tool = {"role": "tool", "tool_call_id": "x", "content": [part()]}
    refused(http.post("/v1/chat/completions", json={"messages": [tool]}), "role 'tool'")


class Looks:
    """A viewer that notes what it decodes: of each image a count and some bytes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, path: str, count: int = 10, **limits: Any
    ) -> None:
        processor = processor_of(Path(path), json.loads((Path(path) / "config.json").read_text()))
        assert processor is not None
        self.viewer = Viewer(processor, MediaConfig(**limits), 1)
        self.looked: list[tuple[Any, ...]] = []
        self.now = self.most = 0
        self._count = count
        self._lock = threading.Lock()
        monkeypatch.setattr(self.viewer, "_look", self._look)

    def _look(self, *given: Any) -> Prepared:
        with self._lock:
            self.looked.append(given)
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self._lock:
            self.now -= 1
        return Prepared("image", self._count, (100,), bytes(100))


def images(count: int) -> list[MediaSource]:
    found = [base64.b64encode(bytes([i + 1])).decode() for i in range(count)]
    return [MediaSource("image", text, f"image_data[{i}]") for i, text in enumerate(found)]


@pytest.fixture
def looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Looks]:
    path = write_model(tmp_path_factory.mktemp("looks"))
    return lambda **limits: Looks(monkeypatch, path, **limits)


def test_fetched_media_that_wait_are_bounded(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "FETCHED", 1000)
    made = looks(max_media_bytes=100, max_media_per_prompt=3, media_threads=1)
    viewer, most, gate = made.viewer, 0, threading.Event()

    def fetched(source: MediaSource, owner: str) -> bytes:
        nonlocal most
        most = max(most, viewer._held)
        return source.text.encode().ljust(100, b"=")

    def look(*_: Any) -> Prepared:
        assert gate.wait(60)
        return Prepared("image", 1, (100,), bytes(100))

    async def main() -> list[Any]:
        prompts = [
            [MediaSource("image", f"https://a/{n}{i}.png", "image_data[0]") for i in range(3)]
            for n in range(20)
        ]
        works = [asyncio.ensure_future(viewer.read(prompt)) for prompt in prompts]
        await asyncio.wait(works, timeout=0.5)
        gate.set()
        return await asyncio.gather(*works, return_exceptions=True)

    monkeypatch.setattr(viewer, "_fetch", fetched)
    monkeypatch.setattr(viewer, "_look", look)
    found = asyncio.run(main())
    codes = [one.code for one in found if isinstance(one, RequestError)]
    assert set(codes) == {"queue_full"}
    assert most <= 1000 + viewing.SHARE * 100
    assert (viewer._held, viewer._waiting) == (0, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_is_decoded_than_the_context_holds(
    looks: Callable[..., Looks], threads: int
) -> None:
    made = looks(media_threads=threads)
    with pytest.raises(RequestError, match="50 tokens so far") as error:
        asyncio.run(made.viewer.read(images(32), 45))
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "image_data")
    assert 5 <= len(made.looked) < 5 + threads
    assert made.most <= threads
    found = asyncio.run(looks().viewer.read(images(5), 50))
    assert [seen.prepared.count for seen in found] == [10] * 5


def test_decoded_bytes_are_bounded(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewing, "DECODED", 350)
    made = looks(media_threads=1)
    with pytest.raises(RequestError, match="400 bytes so far when decoded; at most 350"):
        asyncio.run(made.viewer.read(images(32)))
    assert len(made.looked) == 4


def test_prompts_are_decoded_a_few_at_once(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = looks(media_threads=2, media_cache_bytes=0)
    now = most = 0
    decoded = made.viewer._decoded

    async def note(*given: Any) -> Any:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            return await decoded(*given)
        finally:
            now -= 1

    async def several() -> None:
        await asyncio.gather(*(made.viewer.read(images(3)) for _ in range(8)))

    monkeypatch.setattr(made.viewer, "_decoded", note)
    asyncio.run(several())
    assert (most, len(made.looked)) == (2, 24)


def test_decoded_media_are_told_by_all_facts(looks: Callable[..., Looks]) -> None:
    made = looks(max_video_frames=99_999)
    for frames in (10_000, 10_001, 10_000):
        made.viewer._prepared(MediaSource("video", "eHh4", "v", frames), None, False)
    assert [given[2] for given in made.looked] == [10_000, 10_001]


def test_a_conversation_of_too_many_images(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = served.state.runtime.viewer
    assert viewer is not None
    limits = replace(served.state.runtime.config.media, max_media_per_prompt=60)
    monkeypatch.setattr(viewer, "limits", limits)
    looked: list[str] = []
    look = viewer._look
    monkeypatch.setattr(viewer, "_look", lambda *given: looked.append("") or look(*given))
    error = is_error(chat(http, [part(picture(28, 28, 100 + i)) for i in range(60)]), 400)
    assert error["code"] == "context_length_exceeded"
    assert 1024 // COUNT < len(looked) <= 1024 // COUNT + 2


# -- files ----------------------------------------------------------------------------------------


def test_files_below_the_one_directory(http: httpx.Client, files: Path) -> None:
    shown = files / "shown"
    for good in ("a.png", str(shown / "a.png"), f"file://{shown}/a.png", "inner.png"):
        generate(http, "<image>", image_data=good)
    for bad in ("../secret.png", str(files / "secret.png"), f"file://{files}/secret.png",
                "link.png", "pipe.png", "none.png", f"file://{shown}",
                "file:///etc/passwd",
                f"file://evil.example{shown}/a.png", "file:///%00.png",
                "/dev/zero.png"):  # fmt: skip
        reply = http.post("/generate", json={"text": "<image>", "image_data": bad})
        assert is_error(reply, 400)["param"] == "image_data", bad
        assert "No such" not in reply.text, "what is there is not told"
    refused(http.post("/generate", json={"text": "<image>", "image_data": "long.png"}), "at most")


def test_files_elsewhere_are_not_opened(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = os.open

    def note(path: Any, *given: Any, **named: Any) -> int:
        opened.append(str(path))
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", note)
    for name in ("../secret.png", "link.png", "/dev/zero.png", str(files / "secret.png")):
        with pytest.raises(RequestError, match="is no file"):
            read_file(MediaSource("image", name, "image_data"), str(files / "shown"), 1 << 20)
    assert opened == []
    # Another file is put at the path after the check.
    looked = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: {
        str(files / "shown" / "link.png"): str(files / "shown" / "link.png")
    }.get(str(path)) or looked(path))  # fmt: skip
    with pytest.raises(RequestError, match="is no file"):
        read_file(MediaSource("image", "link.png", "image_data"), str(files / "shown"), 1 << 20)
    assert opened == [str(files / "shown" / "link.png")]


# -- addresses ------------------------------------------------------------------------------------


def test_26_nothing_is_fetched_unless_allowed(http: httpx.Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        here = f"http://127.0.0.1:{listener.getsockname()[1]}/a.png"
        refused(
            chat(http, [{"type": "image_url", "image_url": {"url": here}}]), "--allow-remote-media"
        )
        with pytest.raises(BlockingIOError):
            listener.accept()


ODD = [
    "http://user@example.com/", "http://example.com\\@evil.com/", "http:\\\\example.com/a",
    "http://exa mple.com/", "ftp://example.com/a", "http:///a", "http://[::1/a",
    "http://example.com:99999/", "http://ex\u0430mple.com/", "http://example.com/\n", "http://-/",
    "//example.com/a", "http://a:b@example.com", "http://example.com%2f@evil.com/",
]  # fmt: skip


@pytest.mark.parametrize("address", ODD)
def test_26_urls_that_can_be_misread(address: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        verified(address, ())


def test_26_only_hosts_that_are_listed() -> None:
    assert verified("https://Example.COM./a?b=c", {"example.com"}).hostname == "example.com."
    for other in ("http://sub.example.com/", "http://example.com.evil.com/", "http://evil.com/"):
        with pytest.raises(ValueError, match="allowed-media-domains"):
            verified(other, {"example.com"})


PRIVATE = [
    "127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "0.0.0.0",
    "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1", "240.0.0.1", "::1",
    "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8",
    "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fd00:ec2::254",
    "::7f00:1",
    # Ranges that only some releases of Python call global, and metadata servers of clouds.
    "192.0.0.9", "192.0.0.10", "192.0.0.192", "192.88.99.1", "168.63.129.16", "100.100.100.200",
    "192.31.196.1", "192.52.193.1", "192.175.48.1", "192.0.2.1", "198.51.100.1", "203.0.113.1",
    "172.31.255.255", "198.19.255.255", "100.127.255.255",
    "fec0::1", "3fff::1", "3fff:fff:ffff::1", "5f00::1", "100::1", "100:0:0:1::1", "64:ff9b:1::1",
    "64:ff9b::a00:1", "2001:1::1", "2001:2::1", "2001:20::1", "2001:30::1", "2001:db8::1",
    "2002:a00:1::1", "2620:4f:8000::1", "4000::1", "fe00::1", "::a00:1", "::ffff:0:a00:1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_26_addresses_that_are_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ipaddress

    assert not public(ipaddress.ip_address(address))
    found = [(0, 0, 0, "", ("8.8.8.8", 80)), (0, 0, 0, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ValueError, match="not public"):
        resolved("example.com", 80, time.monotonic() + 60)


def test_26_public_addresses() -> None:
    import ipaddress

    for address in (
        "8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1",
        "126.255.255.255", "168.63.129.17", "172.15.255.255", "172.32.0.1", "192.0.1.1",
        "192.88.98.255", "192.167.0.1", "192.169.0.1", "198.17.255.255", "198.20.0.1",
        "223.255.255.255", "2606:4700:4700::1111", "2001:200::1", "2001:4860:4860::8888",
        "2003::1", "2a00:1450::1", "3ffe:ffff::1",
    ):  # fmt: skip
        assert public(ipaddress.ip_address(address))


class Site:
    """A web server that is resolved as example.com; maps paths to answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.looked: list[str] = []
        self.asked: list[str] = []
        self.addresses = ["93.184.216.34"]
        self.replies: dict[str, bytes] = {}

        def lookup(host: str, *_: Any, **__: Any) -> Any:
            self.looked.append(host)
            address = self.addresses[min(len(self.looked), len(self.addresses)) - 1]
            return [(0, 0, 0, "", (address, 80))]

        def connect(address: tuple[str, int], timeout: float) -> socket.socket:
            assert address[0] == "93.184.216.34", "what was looked at"
            made = socket.socket()
            made.settimeout(timeout)
            made.connect(("127.0.0.1", self.port))
            return made

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        monkeypatch.setattr(socket, "create_connection", connect)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                head = connection.recv(4096).decode()
                self.asked.append(head.split("\r\n")[0])
                connection.sendall(self.replies.get(head.split()[1], b"HTTP/1.1 404 No\r\n\r\n"))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(monkeypatch)
    yield made
    made.listener.close()


RULES = Fetch((), 1000, 5.0)


def moved(to: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def test_26_fetching(site: Site) -> None:
    site.replies = {
        "/a?b": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        "/open": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(999),
        "/long": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001),
        "/there": moved("/a?b"),
        "/round": moved("/round"),
        "/metadata": moved("http://169.254.169.254/latest"),
        "/odd": moved("http://x@y/"),
        "/file": moved("file:///etc/passwd"),
    }
    assert fetch("http://example.com/a?b", RULES) == b"abc"
    assert fetch("http://example.com/there", RULES) == b"abc"
    assert len(fetch("http://example.com/open", RULES)) == 999
    for path, words in (
        ("long", "more than 1000"), ("round", "redirect"), ("odd", "@"), ("file", "scheme"),
        ("none", "answers 404"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            fetch(f"http://example.com/{path}", RULES)


def test_26_a_redirect_is_looked_at(site: Site) -> None:
    site.replies = {"/metadata": moved("http://metadata.internal/latest")}
    site.addresses = ["93.184.216.34", "169.254.169.254"]
    with pytest.raises(ValueError, match="not public"):
        fetch("http://example.com/metadata", RULES)
    assert site.looked == ["example.com", "metadata.internal"]
    assert len(site.asked) == 1


def test_26_a_name_is_looked_up_once(site: Site) -> None:
    """A second look may find another address (DNS rebinding)."""
    site.replies = {"/": b"HTTP/1.1 200 OK\r\n\r\nx"}
    site.addresses = ["93.184.216.34", "127.0.0.1"]
    assert fetch("http://example.com", RULES) == b"x"
    assert site.looked == ["example.com"]


def test_26_a_host_that_does_not_answer_in_time(site: Site) -> None:
    site.replies = {"/": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"}
    with pytest.raises(ValueError, match="cannot be fetched"):
        fetch("http://example.com/", Fetch((), 1000, 0.0))


class Drip:
    """A server that sends a byte now and then, after a beginning; resolved as example.com."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: bytes, drop: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._first, self._drop = first, drop
        port = self.listener.getsockname()[1]
        connect = socket.create_connection
        monkeypatch.setattr(remote, "resolved", lambda *_, **__: "93.184.216.34")
        monkeypatch.setattr(
            socket, "create_connection", lambda _, left: connect(("127.0.0.1", port), left)
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self.listener:
            connection, _ = self.listener.accept()
        with connection:
            try:
                connection.sendall(self._first)
                while True:
                    connection.sendall(self._drop)
                    time.sleep(0.1)
            except OSError:
                return


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status": ("http", b"", b"H"),
    "header": ("http", OK + b"X: ", b"x"),
    "headers": ("http", OK, b"X: y\r\n"),
    "redirect": ("http", b"HTTP/1.1 302 Found\r\nLocation: http://example.com/", b"x"),
    "chunk": ("http", OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "body": ("http", OK + b"\r\n", b"x"),
    "handshake": ("https", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x00"),
}


@pytest.mark.parametrize("name", DRIPS)
def test_26_a_host_that_drips(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    scheme, first, drop = DRIPS[name]
    Drip(monkeypatch, first, drop)
    began = time.monotonic()
    with pytest.raises(ValueError, match="--media-fetch-timeout"):
        fetch(f"{scheme}://example.com/", Fetch((), 1000, 0.5))
    assert time.monotonic() - began > 0.4


def test_26_a_name_that_is_not_found_in_time(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait(60) and [])
    made = looks(allow_remote_media=True, media_fetch_timeout=0.2)

    async def timed() -> float:
        began = time.monotonic()
        with pytest.raises(RequestError, match="--media-fetch-timeout"):
            await made.viewer.read([MediaSource("image", "http://example.com/", "image_data")])
        return time.monotonic() - began

    try:
        assert asyncio.run(timed()) < 50  # the name's own time is longer
    finally:
        end.set()


@pytest.mark.parametrize("every", [False, True])
def test_26_hosts_are_the_only_ones_with_either_flag(
    looks: Callable[..., Looks], site: Site, every: bool
) -> None:
    site.replies = {"/": OK + b"\r\nx"}
    made = looks(allow_remote_media=every, allowed_media_domains="a.example")
    with pytest.raises(RequestError, match="not among the hosts in --allowed-media-domains"):
        asyncio.run(made.viewer.read([MediaSource("image", "http://b.example/", "image_data")]))
    assert site.looked == []
    asyncio.run(made.viewer.read([MediaSource("image", "http://a.example/", "image_data")]))
    assert site.looked == ["a.example"]


def test_26_a_redirect_stays_among_the_hosts_that_are_listed(
    looks: Callable[..., Looks], site: Site
) -> None:
    """A listed host that redirects anywhere would make every public host one of the list."""
    viewer = looks(allowed_media_domains="a.example,c.example").viewer

    async def read(url: str) -> Any:
        return await viewer.read([MediaSource("image", url, "image_data")])

    site.replies = {
        "/out": moved("http://b.example/x"), "/near": moved("//b.example/x"),
        "/sub": moved("http://sub.a.example/x"), "/bare": moved("http://93.184.216.34/x"),
        "/twice": moved("http://c.example/out"),
        "/in": moved("http://c.example/x"), "/x": OK + b"\r\n" + A,
    }  # fmt: skip
    for path in ("out", "near", "sub", "bare", "twice"):
        site.looked.clear()
        with pytest.raises(RequestError, match="not among the hosts in --allowed-media-domains"):
            asyncio.run(read(f"http://a.example/{path}"))
        assert set(site.looked) <= {"a.example", "c.example"}, path
    site.looked.clear()
    asyncio.run(read("http://a.example/in"))
    assert site.looked == ["a.example", "c.example"]


# -- the language ---------------------------------------------------------------------------------


def test_programs_over_http(served: Served, http: httpx.Client) -> None:
    backend = sgl.RuntimeEndpoint(served.url)
    assert backend.chat_template.image_token == "<image>"

    @sgl.function
    def program(s: Any, first: bytes, second: bytes) -> None:
        s += sgl.user(
            "A " + sgl.image(first) + " film " + sgl.video(movie(4), 2) + " B " + sgl.image(second)
        )
        forks = s.fork(2)
        for fork in forks:
            fork += sgl.assistant(sgl.gen("x", max_tokens=3, temperature=0))
        s += sgl.assistant(sgl.select("which", ["one", "two"]))
        s["texts"] = [fork["x"] for fork in forks]

    states = program.run_batch(
        [{"first": A, "second": B}, {"first": B, "second": A}, {"first": A, "second": B}],
        backend=backend, num_threads=2,
    )  # fmt: skip
    assert [state["texts"][0] == state["texts"][1] for state in states] == [True] * 3
    assert states[0]["texts"] == states[2]["texts"] != states[1]["texts"]
    assert states[0]["which"] in ("one", "two")
    streamed = program.run(first=A, second=B, backend=backend, stream=True)
    assert "".join(streamed.text_iter()).count("<image>") == 2
