"""Ollama's API through its own client, over completions that are scripted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import ollama
import pytest
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.media_input.sources import source_of
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.ollama import served_models
from sglang.srt.web.ollama.ollama_chat import picture

MODEL = "sglang-tiny:latest"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
HI = {"role": "user", "content": "Hi"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Paced]]:
    model = Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("model"))))
    with serve_scripted(model) as url:
        yield url, model


@pytest.fixture
def model(served: tuple[str, Paced]) -> Paced:
    served[1].text, served[1].finish, served[1].fault = "Hello there.", Finish("stop"), None
    served[1].real = False
    return served[1]


@pytest.fixture
def client(served: tuple[str, Paced], model: Paced) -> ollama.Client:
    return ollama.Client(host=served[0], timeout=60)


def post(url: str, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{url}/api/{path}", json=body, timeout=60)


# -- chats ----------------------------------------------------------------------------------------


def test_a_chat_is_answered_whole(client: ollama.Client, model: Paced) -> None:
    reply = client.chat(MODEL, [{"role": "system", "content": "Be kind."}, HI], keep_alive="5m")
    assert model.prompts[-1] == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert (reply.message.role, reply.message.content) == ("assistant", "Hello there.")
    assert (reply.model, reply.done, reply.done_reason) == (MODEL, True, "stop")
    assert reply.prompt_eval_count == len(model.requests[-1].prompt)
    assert reply.eval_count == len("Hello there.")
    assert (reply.message.tool_calls, reply.message.thinking) == (None, None)


def test_a_chat_streams_lines_of_json(served: tuple[str, Paced], client: ollama.Client) -> None:
    parts = list(client.chat(MODEL, [HI], stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Hello there."
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].message.content == ""
    assert parts[-1].eval_count == len("Hello there.")
    raw = post(served[0], "chat", {"model": "sglang-tiny", "messages": [HI]})  # streams by default
    assert raw.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in raw.text.splitlines()]
    assert len(lines) == len(parts)
    assert {line["model"] for line in lines} == {"sglang-tiny"}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools_come_whole(client: ollama.Client, model: Paced, stream: bool) -> None:
    model.text = f"Let me see. {CALL}\n{CALL}"
    chat: Any = client.chat  # the overloads take only a literal `stream`
    found = chat(MODEL, [HI], tools=[WEATHER], stream=stream)
    parts: list[Any] = list(found) if stream else [found]
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", {"city": "Köln"})
    ] * 2
    assert "".join(part.message.content or "" for part in parts).strip() == "Let me see."
    assert parts[-1].done_reason == "stop"


def test_a_call_cut_by_the_limit_is_left_out(client: ollama.Client, model: Paced) -> None:
    model.text, model.finish = CALL[:60], Finish("length")
    reply = client.chat(MODEL, [HI], tools=[WEATHER])
    assert (reply.message.tool_calls, reply.done_reason) == (None, "length")


def test_results_of_tools_stand_behind_their_calls(client: ollama.Client, model: Paced) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
    client.chat(
        MODEL,
        [HI, {"role": "assistant", "tool_calls": [call]},
         {"role": "tool", "tool_name": "get_weather", "content": "rain"}],
        tools=[WEATHER],
    )  # fmt: skip
    assert '"city": "Köln"' in model.prompts[-1]
    assert model.prompts[-1].index("Köln") < model.prompts[-1].index("rain")


def test_an_assistants_message_at_the_end_goes_on(client: ollama.Client, model: Paced) -> None:
    client.chat(MODEL, [HI, {"role": "assistant", "content": "Hello, I"}])
    assert model.prompts[-1].endswith("<|im_start|>assistant\nHello, I")


def test_options_reach_the_engine(client: ollama.Client, model: Paced) -> None:
    options = {
        "num_predict": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.7, "min_p": 0.1, "seed": 5,
        "stop": ["END"], "repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "num_ctx": 4096, "mirostat": 2, "made_up": "ignored",
    }  # fmt: skip
    client.chat(MODEL, [HI], options=options)
    sampling = model.requests[-1].sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (7, 0.5, 3)
    assert (sampling.top_p, sampling.min_p, sampling.seed, sampling.stop) == (0.7, 0.1, 5, ("END",))
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.1, 0.5)
    assert sampling.frequency_penalty == 0.25


def test_options_that_are_not_given_are_ollamas(client: ollama.Client, model: Paced) -> None:
    client.chat(MODEL, [HI])
    sampling = model.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
    assert (sampling.repetition_penalty, sampling.seed) == (1.0, None)
    whole = sampling.max_new_tokens
    off = {"num_predict": -2, "top_k": 0, "top_p": 0, "seed": -1}
    client.chat(MODEL, [HI], options=off)
    sampling = model.requests[-1].sampling
    assert (sampling.max_new_tokens, sampling.top_k, sampling.top_p) == (whole, 1, 1.0)
    assert sampling.seed is None


def test_formats_constrain_the_text(client: ollama.Client, model: Paced) -> None:
    client.chat(MODEL, [HI], format="json")
    assert model.requests[-1].sampling.constraint is not None
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    client.chat(MODEL, [HI], format=schema)
    constraint = model.requests[-1].sampling.constraint
    assert constraint is not None
    assert "integer" in str(constraint)


def test_logprobs_come_with_the_pieces(served: tuple[str, Paced], model: Paced) -> None:
    model.real = True
    body = {"model": MODEL, "messages": [HI], "logprobs": True, "top_logprobs": 1}
    lines = [json.loads(line) for line in post(served[0], "chat", body).text.splitlines()]
    found = [entry for line in lines for entry in line.get("logprobs", ())]
    assert "".join(entry["token"] for entry in found).startswith("Hello there.")
    whole = post(served[0], "chat", {**body, "stream": False}).json()
    assert whole["logprobs"] == found


# -- prompts --------------------------------------------------------------------------------------


def test_a_prompt_is_a_chat_unless_it_is_raw(client: ollama.Client, model: Paced) -> None:
    reply = client.generate(MODEL, "Hi", system="Be kind.")
    assert reply.response == "Hello there."
    assert "Be kind." in model.prompts[-1]
    assert model.prompts[-1].endswith("assistant\n")
    parts = list(client.generate(MODEL, "Hi", raw=True, stream=True))
    assert model.prompts[-1] == "Hi"
    assert "".join(part.response or "" for part in parts) == "Hello there."
    assert parts[-1].done_reason == "stop"


def test_without_a_prompt_the_model_is_said_to_be_loaded(client: ollama.Client) -> None:
    assert client.generate(MODEL).done_reason == "load"
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert client.chat(MODEL).done_reason == "load"


def test_thoughts_are_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("thinking"))))
    model.text = "<think>\nhm\n</think>\n\n42"
    with serve_scripted(model, Config.of(reasoning_parser="qwen3")) as url:
        client = ollama.Client(host=url, timeout=60)
        assert "thinking" in (client.show(MODEL).capabilities or ())
        reply = client.chat(MODEL, [HI], think=True)
        assert (reply.message.thinking, reply.message.content) == ("hm", "42")
        parts = list(client.generate(MODEL, "Hi", think="high", stream=True))
        assert "".join(part.thinking or "" for part in parts) == "hm"
        assert "".join(part.response or "" for part in parts) == "42"


# -- models ---------------------------------------------------------------------------------------


def test_models_are_listed_and_shown(client: ollama.Client) -> None:
    (tag,) = client.list().models
    (running,) = client.ps().models
    assert tag.model == running.model == MODEL
    assert tag.digest == running.digest
    assert len(tag.digest or "") == 64
    shown = client.show("sglang-tiny")
    assert "tools" in (shown.capabilities or ())
    assert "<|im_start|>" in (shown.template or "")
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == running.context_length


@pytest.mark.parametrize(
    ("changes", "form"),
    [({}, "safetensors"), ({"quantization": "gguf"}, "gguf"), ({"model_path": "a.gguf"}, "gguf")],
)
def test_the_format_is_that_of_the_files(model: Paced, changes: dict[str, Any], form: str) -> None:
    info, known = msgspec.structs.replace(model.info, **changes), SimpleNamespace(known={})
    runtime: Any = SimpleNamespace(info=info, model_name="m", adapters=known)
    (card,) = served_models.listed(runtime, 0)
    assert card["details"]["format"] == form


def test_a_served_model_is_pulled_and_nothing_else_changes(client: ollama.Client) -> None:
    assert client.pull(MODEL).status == "success"
    for refused in (
        lambda: client.pull("llama3.2"),
        lambda: client.push(MODEL),
        lambda: client.create("mine", from_=MODEL),
        lambda: client.copy(MODEL, "other"),
        lambda: client.delete(MODEL),
    ):
        with pytest.raises(ollama.ResponseError, match="not available: this server keeps"):
            refused()


def test_ollamas_command_finds_the_server(served: tuple[str, Paced]) -> None:
    reply = httpx.head(served[0])
    assert reply.status_code == 200
    assert reply.content == b""
    assert httpx.head(f"{served[0]}/v1/models").status_code == 405


def test_version(served: tuple[str, Paced]) -> None:
    version = httpx.get(f"{served[0]}/api/version").json()["version"]
    assert [part.isdigit() for part in version.split(".")] == [True] * 3


# -- errors ---------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("chat", {"messages": [HI]}, 400, "model is missing"),
    ("chat", {"model": "llama3.2", "messages": [HI]}, 404, "not found; this server has sglang"),
    ("chat", {"messages": [HI], "options": {"num_predict": "7"}}, 400, "num_predict is '7'"),
    ("chat", {"messages": [HI], "options": {"temperature": True}}, 400, "temperature is True"),
    ("chat", {"messages": [HI], "options": {"temperature": -1}}, 400, "options.temperature is -1"),
    ("chat", {"messages": [HI], "options": {"seed": 1e300}}, 400, "options.seed"),
    ("chat", {"messages": [HI], "options": {"top_k": 10**400}}, 400, "options.top_k"),
    ("chat", {"messages": [HI], "options": {"stop": [1]}}, 400, "options.stop is [1]"),
    ("chat", {"messages": [HI], "options": []}, 400, "options"),
    ("chat", {"messages": [HI], "format": "yaml"}, 400, "format is 'yaml'"),
    ("chat", {"messages": [HI], "think": True}, 400, "does not support thinking"),
    ("chat", {"messages": [HI], "think": "much"}, 400, "think is 'much'"),
    ("chat", {"messages": [{"role": "cat", "content": ""}]}, 400, "messages[0].role is 'cat'"),
    ("chat", {"messages": [{**HI, "images": ["/etc/passwd"]}]}, 400,
     "messages[0].images[0]: "),
    ("chat", {"messages": [HI, {**HI, "images": ["QQ=="]}]}, 400, "messages[1].images[0]: "),
    ("generate", {"prompt": "a", "system": "b", "images": ["QQ=="]}, 400, "images[0]: "),
    ("chat", {"messages": [{**HI, "images": [""]}]}, 400, "messages[0].images[0] is empty"),
    ("chat", {"messages": [{"role": "assistant", "images": ["QQ=="]}]}, 400, "role 'assistant'"),
    ("chat", {"messages": [HI], "top_logprobs": 3}, 400, "top_logprobs needs logprobs"),
    ("generate", {"prompt": "a", "suffix": "b"}, 400, "suffix is not available"),
    ("generate", {"prompt": "a", "context": [1]}, 400, "context is not available"),
    ("generate", {"prompt": "a", "template": "x"}, 400, "template is not available"),
    ("generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "raw is true, and system"),
    ("generate", {"prompt": "a" * 100_000, "raw": True}, 400, "context length"),
    ("generate", {"prompt": 5}, 400, "prompt"),
    ("show", {}, 400, "model is missing"),
    ("show", {"name": "../../etc/passwd"}, 404, "not found"),
    ("embed", {"input": ["a"] * 3000}, 400, "input has 3000 entries"),
    ("embed", {"input": {"a": 1}}, 400, "input"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "words"), REFUSED)
def test_bad_input_is_refused_in_ollamas_form(
    served: tuple[str, Paced],
    model: Paced,
    path: str,
    body: dict[str, Any],
    status: int,
    words: str,
) -> None:
    named = body if "is missing" in words or "name" in body else {"model": MODEL, **body}
    reply = post(served[0], path, named)
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    assert words in reply.json()["error"]
    assert "image_url" not in reply.text
    assert len(reply.text) < 4000


def test_a_fault_in_a_stream_is_its_last_line(served: tuple[str, Paced], model: Paced) -> None:
    model.fault = (1, RuntimeError("secret"))
    reply = post(served[0], "chat", {"model": MODEL, "messages": [HI]})
    *_, last = [json.loads(line) for line in reply.text.splitlines()]
    assert set(last) == {"error"}
    assert "secret" not in reply.text


def test_images_are_never_names_of_files(served: tuple[str, Paced], model: Paced) -> None:
    """Text that is no base64 is no path and no address either (row 92)."""
    for given in ("/etc/passwd", "file:///etc/passwd.png", "http://127.0.0.1/a.png"):
        source = source_of("image", picture("images[0]", given)["image_url"], "images[0]")
        assert not source.file
        assert not source.remote
    data = base64.b64encode(b"x").decode()
    assert picture("images[0]", data)["image_url"].endswith(data)
