"""Images of Ollama's messages are those of the other APIs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import serve_text
from helpers.seeing import picture, url, write_model
from sglang.srt.config import Config
from sglang.srt.tokenizer import Tokenizer

A = picture(28, 28, 1)


def test_an_image_makes_the_same_prompt_by_every_api(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = write_model(tmp_path_factory.mktemp("model"))
    config = Config.of(model_path=path, served_model_name="seeing")
    with serve_text(Path(path), config, Tokenizer(Path(path)), vision=True) as served:
        http, data = served.client, base64.b64encode(A).decode()
        said: dict[str, Any] = {"role": "user", "content": "what?", "images": [data]}
        options = {"temperature": 0, "num_predict": 3}
        body = {"model": "seeing", "stream": False, "options": options}
        chat = http.post("/api/chat", json={**body, "messages": [said]}).json()
        prompt = {**body, "prompt": "what?", "images": [data]}
        generated = http.post("/api/generate", json=prompt).json()
        parts = [{"type": "image_url", "image_url": {"url": url(A)}},
                 {"type": "text", "text": "what?"}]  # fmt: skip
        openai = {"messages": [{"role": "user", "content": parts}], "temperature": 0,
                  "max_tokens": 3}  # fmt: skip
        reply = http.post("/v1/chat/completions", json=openai).json()
        text = reply["choices"][0]["message"]["content"]
        assert chat["message"]["content"] == generated["response"] == text
        counted = reply["usage"]["prompt_tokens"]
        assert chat["prompt_eval_count"] == generated["prompt_eval_count"] == counted > 30
        shown = http.post("/api/show", json={"model": "seeing"}).json()
        assert "vision" in shown["capabilities"]
        bad = http.post("/api/generate", json={**prompt, "images": ["/etc/passwd"]})
        assert bad.status_code == 400
        assert "is not base64" in bad.json()["error"]
        served.client.idle()
