"""Shares of fetches: slow hosts of one tenant leave connections to another's."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from helpers.http_server import serve_text
from helpers.seeing import picture, write_model
from sglang.srt.config import Config
from sglang.srt.config.sections import MediaConfig
from sglang.srt.requests.media_input.media_loading import FETCHES, SHARE, Viewer
from sglang.srt.requests.media_input.sources import MediaSource
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

LINK = "http://a.example/x.png"


@pytest.mark.parametrize("gone", [False, True])
def test_slow_fetches_of_one_tenant_leave_some_to_another(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Also those whose requests are gone: their threads go on."""
    begun, end = list[str](), threading.Event()

    def fetch(source: MediaSource, owner: str) -> bytes:
        begun.append(owner)
        if owner == "ann":
            assert end.wait(60)
        raise source.refused(f"nothing for {owner}")

    processor: Any = SimpleNamespace(image_token=SimpleNamespace(id=1), max_frames=1)
    viewer = Viewer(processor, MediaConfig(allow_remote_media=True, media_fetch_timeout=60.0), 9)
    monkeypatch.setattr(viewer, "_fetch", fetch)
    source = MediaSource("image", LINK, "image_data")

    def ask(count: int) -> list[asyncio.Future[Any]]:
        return [asyncio.ensure_future(viewer.read([source], owner="ann")) for _ in range(count)]

    async def main() -> None:
        reads = ask(FETCHES)
        while len(begun) < SHARE:
            await asyncio.sleep(0.01)
        if gone:
            for read in reads:
                read.cancel()
            await asyncio.wait(reads)
            reads = ask(FETCHES - SHARE)
        with pytest.raises(RequestError, match="nothing for bob"):
            await asyncio.wait_for(viewer.read([source], owner="bob"), 50)
        assert begun == ["ann"] * SHARE + ["bob"]
        end.set()
        await asyncio.wait(reads)
        assert begun.count("ann") == FETCHES

    asyncio.run(main())


IMAGE = {"type": "image_url", "image_url": {"url": LINK}}
SAID = [{"role": "user", "content": [IMAGE]}]
SHOWN = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": LINK}}]}]
INPUT = [{"role": "user", "content": [{"type": "input_image", "image_url": LINK}]}]
CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        "/generate",
        {"text": "<image>", "image_data": LINK, "sampling_params": {"max_new_tokens": 1}},
    ),
    ("/v1/chat/completions", {"messages": SAID, "max_tokens": 1}),
    ("/v1/messages", {"messages": SHOWN, "max_tokens": 1}),
    ("/v1/messages", {"messages": SHOWN, "max_tokens": 0}),
    ("/v1/messages/count_tokens", {"messages": SHOWN}),
    ("/v1/responses", {"input": INPUT, "max_output_tokens": 16}),
    ("/v1/responses/input_tokens", {"input": INPUT}),
    ("/tokenize", {"messages": SAID}),
    ("/apply-template", {"messages": SAID}),
]


def test_each_route_takes_its_keys_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, owners = tmp_path / "keys.json", list[str]()
    keys.write_text(json.dumps([{"name": name, "key": name * 8} for name in ("ann", "bob")]))

    def fetch(viewer: Viewer, source: MediaSource, owner: str) -> bytes:
        owners.append(owner)
        return picture(28, 28, 1)

    monkeypatch.setattr(Viewer, "_fetch", fetch)
    path = write_model(tmp_path / "model")
    config = Config.of(model_path=path, api_keys_file=str(keys), allow_remote_media=True)
    headers = {"Authorization": "Bearer " + "bob" * 8}
    with (
        serve_text(Path(path), config, Tokenizer(Path(path)), vision=True) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=60) as client,
    ):
        for route, body in CALLS:
            reply = client.post(route, json=body)
            assert reply.status_code == 200, (route, reply.text)
            assert owners == ["bob"], route
            owners.clear()
