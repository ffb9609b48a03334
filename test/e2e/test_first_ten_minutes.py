"""The first ten minutes of a new user, in order, each step on the servers that they would start."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import sglang as sgl
from helpers.launched import Server, launched
from pydantic import BaseModel

pytest.importorskip("torch")

from helpers.browser import chromium
from helpers.page_driver import Opener, opening, say
from helpers.seeing import picture, write_model
from sglang.srt.tokenizer.tokenizer import EMBEDDED

ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed")
CPU = ["--device", "cpu", "--max-total-tokens", "16384"]
MARA = "Mara Fox is 17 years old. Mara lives in Rome."
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (EMBEDDED / "model.safetensors").is_file(),
        reason="the answers are the embedded model's",
    ),
]


class Card(BaseModel):
    name: str
    age: int
    city: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with launched([*CPU, "--batch-dir", str(tmp_path_factory.mktemp("batches"))]) as server:
        yield server


@pytest.fixture(scope="module")
def open_page() -> Iterator[Opener]:
    with chromium() as browser, opening(browser) as found:
        yield found


def client(served: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_1_a_typed_answer(served: Server) -> None:
    text = f"{MARA}\nExtract the character as JSON with the keys name, age, city."
    answer = client(served).chat.completions.parse(
        model="default", messages=[{"role": "user", "content": text}], temperature=0,
        response_format=Card,
    )  # fmt: skip
    assert answer.choices[0].message.parsed == Card(name="Mara Fox", age=17, city="Rome")


def test_2_a_program_with_a_tool(served: Server) -> None:
    def calc(expression: str) -> int:
        """Compute a product such as 17*23."""
        left, _, right = expression.partition("*")
        return int(left) * int(right)

    @sgl.function
    def product(s: Any) -> None:
        s += sgl.user("What is 17 * 23?")
        s += sgl.assistant(
            sgl.gen("answer", tools=[calc], tool_choice="calc", max_tokens=64, temperature=0)
        )

    endpoint = sgl.RuntimeEndpoint(served.url)
    state = product.run(backend=endpoint)
    endpoint.shutdown()
    results = [message for message in state.messages() if message["role"] == "tool"]
    assert [one["content"] for one in results] == ["391"]
    assert state["answer"] == "391"


def test_3_the_chat_page_with_markdown(served: Server, open_page: Opener) -> None:
    page = open_page(served.url)
    assert say(page, "Hello") == "Hello! How can I help you?"
    listed = say(page, "Write as a list with dashes: lamp, cup and rope")
    assert page.locator(".message.assistant .prose").last.locator("li").count() == 3, listed


def test_4_the_chat_page_with_a_picture(open_page: Opener, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (tmp_path / "plot.png").write_bytes(picture(80, 40))
    with launched([*CPU[:2], "--model-path", model, "--load-format", "dummy"]) as seeing:
        page = open_page(seeing.url)
        page.locator("#model", has_text="model").wait_for()
        page.set_input_files("#file", [str(tmp_path / "plot.png")])
        page.locator("#attached li", has_text="plot.png").wait_for()
        page.locator("#max_tokens").evaluate("field => field.value = '16'")
        say(page, "What is this?")
        assert page.locator(".user .picture").count() == 1
        seen = prompt_tokens(page)
        page.reload()
        page.locator("#new").click()
        page.locator("#max_tokens").evaluate("field => field.value = '16'")
        say(page, "What is this?")
        assert seen > prompt_tokens(page) + 16, "the picture's own tokens are in the prompt"


def prompt_tokens(page: Any) -> int:
    """Tokens of the last prompt, as the page shows them."""
    found = re.search(r"prompt (\d+)", page.locator(".facts").last.inner_text())
    assert found is not None
    return int(found[1])


def test_5_ollamas_client_and_what_open_webui_sends(served: Server) -> None:
    own = ollama.Client(served.url)
    (model,) = [one.model for one in own.list().models]
    said = [{"role": "user", "content": "Hello"}]
    pieces = [piece.message.content for piece in own.chat(model, said, stream=True)]
    assert "".join(pieces) == "Hello! How can I help you?"
    for path in ("/api/version", "/api/tags", "/api/ps"):  # when the connection is added
        assert httpx.get(f"{served.url}{path}", timeout=30).status_code == 200
    body = {"model": model, "messages": said, "stream": True, "options": {"temperature": 0}}
    with httpx.stream("POST", f"{served.url}/api/chat", json=body, timeout=60) as reply:
        lines = [json.loads(line) for line in reply.iter_lines()]
    assert lines[-1]["done"] is True
    assert "".join(line["message"]["content"] for line in lines) == "".join(pieces)


def test_6_a_batch_file(served: Server) -> None:
    api = client(served)
    lines = [
        json.dumps({
            "custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "default", "temperature": 0, "max_tokens": 8,
                     "messages": [{"role": "user", "content": f"What is {i} + 2?"}]},
        })
        for i in range(3)
    ]  # fmt: skip
    file = api.files.create(file=("a.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = api.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 60
    while (batch := api.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    assert batch.output_file_id is not None
    found = api.files.content(batch.output_file_id).text.splitlines()
    assert {json.loads(line)["custom_id"] for line in found} == {"0", "1", "2"}
