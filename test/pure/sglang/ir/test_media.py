"""Images and videos in prompts: where they come from, where they stand, what backends are sent."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.ir.prompt_media import Media, medium

PNG = b"\x89PNG\r\n\x1a\n" + b"data"
JPEG = b"\xff\xd8\xff" + b"data"


def test_every_kind_of_source(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "a.jpg"  # the bytes tell, not the name
    path.write_bytes(PNG)
    expected = Media("image", PNG, "image/png")
    assert medium("image", path) == medium("image", str(path)) == expected
    assert medium("image", PNG) == medium("image", bytearray(PNG)) == expected
    assert medium("image", expected.address) == expected
    assert medium("image", "https://x.org/a.png") == Media("image", url="https://x.org/a.png")
    drawn = medium("image", Image.new("RGB", (2, 3)))
    assert drawn.mime == "image/png"
    assert drawn.data.startswith(PNG[:8])
    assert medium("video", b"xx", 5).num_frames == 5
    assert base64.b64decode(expected.base64) == PNG


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (b"", "empty: 0 bytes"),
        (5, "give a path, bytes, a PIL image"),
        ("data:image/png,abc", "data:TYPE;base64"),
        ("data:image/png;base64,a?", "not base64"),
        ("/nowhere/a.png", "No such file"),
    ],
)
def test_what_is_no_image_is_refused_where_it_is_given(source: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError, OSError), match=complaint):
        sgl.image(source)


def test_several_images_stand_where_they_were_appended() -> None:
    mock = sgl.Mock(["cats"])

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("Look.")
        s += sgl.user("A: " + sgl.image(PNG) + " B: " + sgl.image(JPEG) + "?")
        s += sgl.assistant(sgl.gen("x"))
        s += sgl.user("And " + sgl.video(b"movie", 4))

    state = program.run(backend=mock)
    prompt = mock.calls[0].prompt
    assert prompt.text.count("<image>") == 2
    assert [m.mime for m in prompt.media] == ["image/png", "image/jpeg"]
    first, second = prompt.media
    assert prompt.messages[1]["content"] == ["A: ", first, " B: ", second, "?"]
    shown = state.messages()
    assert shown[1]["content"][1] == {"type": "image_url", "image_url": {"url": first.address}}
    assert shown[3]["content"][1]["type"] == "video_url"
    assert state.text().count("<video>") == 1


def test_forks_share_the_images_before_them() -> None:
    mock = sgl.Mock()

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.image(PNG) + "what"
        forks = s.fork(2)
        forks[0] += sgl.image(JPEG) + sgl.gen("x")
        forks[1] += sgl.gen("x")
        forks.join()

    program.run(backend=mock)
    counts = sorted(len(call.prompt.media) for call in mock.calls if call.kind == "gen")
    assert counts == [1, 2]


def test_the_runtime_is_sent_urls_in_order() -> None:
    from sglang.backend.base import Complete, Prompt
    from sglang.backend.native.native_backend import NativeBackend
    from sglang.ir.params import GenParams

    media = (medium("image", PNG), medium("video", b"movie", 4), medium("image", JPEG))
    body = NativeBackend().request(Complete(Prompt("<image>", media=media), GenParams()))
    assert body["image_data"] == [media[0].address, media[2].address]
    assert body["video_data"] == [{"url": media[1].address, "num_frames": 4}]
