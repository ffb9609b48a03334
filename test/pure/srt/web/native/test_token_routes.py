"""/tokenize, /detokenize, /tokenizer_info, /apply-template and the models routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import http_server
from helpers.http_server import Served, is_error, serve_text
from helpers.toy_tokenizer import sentencepiece
from sglang.srt.config import Config

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüß dich"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Config.of(served_model_name="org/some-model")
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        yield server


@pytest.fixture
def http(served: Served) -> httpx.Client:
    return served.client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_there_and_back(served: Served, http: httpx.Client, prefix: str) -> None:
    for text in ("Grüße", "日本語 🙂", "a\x00b"):
        found = post(http, f"{prefix}/tokenize", prompt=text, return_token_strs=True)
        assert found["tokens"] == list(served.tokenizer.encode(text))
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] == 1024
        back = post(http, f"{prefix}/detokenize", tokens=found["tokens"])
        assert back == {"text": text, "prompt": text}
    plain = post(http, f"{prefix}/tokenize", prompt="the dog")
    assert "token_strs" not in plain
    shown = post(http, f"{prefix}/tokenize", prompt="the dog", return_token_strs=True)
    assert "".join(shown["token_strs"]) == "the dog"
    assert post(http, f"{prefix}/tokenize", content="the dog") == plain
    assert post(http, f"{prefix}/tokenize", text=["the dog"])["tokens"] == [plain["tokens"]]


def test_a_conversation(served: Served, http: httpx.Client) -> None:
    def prompt(**options: Any) -> str:
        return served.tokenizer.apply_chat_template(MESSAGES, **options)

    found = post(http, "/tokenize", messages=MESSAGES)
    assert found["tokens"] == list(served.tokenizer.encode(prompt(), False))
    assert post(http, "/apply-template", messages=MESSAGES) == {"prompt": prompt()}
    bare = post(http, "/apply-template", messages=MESSAGES, add_generation_prompt=False)
    assert bare == {"prompt": prompt(add_generation_prompt=False)}
    assert bare["prompt"] != prompt()
    talk = [*MESSAGES, {"role": "assistant", "content": "Hal"}]
    going = post(http, "/apply-template", messages=talk, continue_final_message=True)
    assert going["prompt"].endswith("Hal")
    assert post(http, "/apply-template", messages=MESSAGES, chat_template_kwargs={"x": 1})
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    told = post(http, "/apply-template", messages=MESSAGES, tools=[tool])["prompt"]
    assert "look_up" in told
    assert post(http, "/tokenize", messages=MESSAGES, tools=[tool])["count"] > found["count"]


def test_a_template_writes_its_own_special_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ bos_token }}{% for m in messages %}hello {{ m.content }}{% endfor %}"
    monkeypatch.setattr(http_server, "byte_level", sentencepiece)
    (tmp_path / "chat_template.jinja").write_text(template)
    with serve_text(tmp_path) as server:
        messages = [{"role": "user", "content": "world"}]
        text = post(server.client, "/apply-template", messages=messages)["prompt"]
        assert text == "<s>hello world"
        found = post(server.client, "/tokenize", messages=messages)["tokens"]
        assert found == list(server.tokenizer.encode(text, False))
        assert found[0] == 1
    (tmp_path / "chat_template.jinja").write_text(template.replace("{{ bos_token }}", ""))
    with serve_text(tmp_path) as server:
        bare = post(server.client, "/tokenize", messages=messages)["tokens"]
        assert [1, *bare] == found
        more = post(server.client, "/tokenize", messages=messages, add_special_tokens=True)
        assert more["tokens"] == found


def test_control_tokens_in_a_message_are_text(served: Served, http: httpx.Client) -> None:
    talk = [{"role": "user", "content": "a<|im_end|>b"}]
    text = post(http, "/apply-template", messages=talk)["prompt"]
    assert text == served.tokenizer.apply_chat_template(talk)
    found = post(http, "/tokenize", messages=talk)["tokens"]
    end = served.tokenizer.id_of("<|im_end|>")
    assert found.count(end) == 1, "the template's own"
    assert served.tokenizer.decode(found) == text


def test_the_prompt_is_the_one_that_a_chat_has(http: httpx.Client) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1}
    usage = post(http, "/v1/chat/completions", **body)["usage"]
    assert post(http, "/tokenize", messages=MESSAGES)["count"] == usage["prompt_tokens"]


def test_tokenizer_info(served: Served, http: httpx.Client) -> None:
    found = http.get("/tokenizer_info").json()
    assert found["eos_token"] == "<|im_end|>"
    assert found["special_tokens"]["pad_token"] == "<|endoftext|>"
    assert found["chat_template"] == served.tokenizer.chat_template
    assert found["model_max_length"] == 1024


REFUSED: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "text": "b"}, 400, "prompt"),
    ("/tokenize", {"prompt": 3}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages"),
    ("/tokenize", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, 403, "chat_template"),
    ("/apply-template", {}, 400, "messages"),
    ("/apply-template", {"messages": MESSAGES, "chat_template": "{{ 1 }}"}, 403, "chat_template"),
    ("/detokenize", {}, 400, None),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
    ("/detokenize", {"tokens": [2**63]}, 400, "tokens"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
    ("/detokenize", {"tokens": [[1], 2]}, 400, "tokens"),
    ("/detokenize", {"tokens": [[1], "a"]}, 400, "tokens"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    assert is_error(http.post(path, json=body), status)["param"] == param


def test_no_text_is_no_token(http: httpx.Client) -> None:
    assert post(http, "/tokenize", prompt="")["tokens"] == []
    assert post(http, "/tokenize", prompt=[])["tokens"] == []
    assert post(http, "/detokenize", tokens=[])["text"] == ""


def test_models(http: httpx.Client) -> None:
    found = http.get("/v1/models").json()
    assert http.get("/models").json() == found
    (card,) = found["data"]
    assert (card["id"], card["object"]) == ("org/some-model", "model")
    assert card["max_model_len"] == 1024
    assert http.get("/v1/models/org/some-model").json() == card
    assert http.get("/v1/models/org%2Fsome-model").json() == card
    is_error(http.get("/v1/models/org"), 404)
