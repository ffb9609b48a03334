"""POST /v1/responses and what belongs to it, by OpenAI's own client where it has a word for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import is_error
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from sglang.srt.config import Config
from sglang.srt.requests.completion.output import Finish
from sglang.srt.tokenizer import Tokenizer

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Paced:
    return Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def url(scripted: Paced) -> Iterator[str]:
    with serve_scripted(scripted) as url:
        yield url


@pytest.fixture
def model(scripted: Paced) -> Paced:
    """The scripted model, reset for every test."""
    scripted.__init__(scripted.tokenizer)  # type: ignore[misc]
    scripted.text = "Hello wörld."
    return scripted


@pytest.fixture
def client(url: str, model: Paced) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(url: str, model: Paced) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def create(http: httpx.Client, **body: Any) -> Any:
    reply = http.post(PATH, json={"input": "Hi", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(reply: httpx.Response) -> list[Any]:
    """Decoded events of a whole stream; asserts their form, types, numbers and order."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in reply.text.split("\n\n"):
        if not frame or frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert EVENT.validate_json(data.removeprefix("data: "), strict=True).type == event["type"]
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def stream(http: httpx.Client, **body: Any) -> list[Any]:
    return events(http.post(PATH, json={"input": "Hi", "stream": True, **body}))


def kinds(found: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


def wait(client: openai.OpenAI, id: str) -> Response:
    """The response, once it has ended."""
    for _ in range(6000):
        found = client.responses.retrieve(id)
        if found.status not in ("queued", "in_progress"):
            return found
        time.sleep(0.01)
    raise AssertionError("it does not end")


# -- one response ---------------------------------------------------------------------------------


def test_a_text(client: openai.OpenAI, model: Paced) -> None:
    answer = client.responses.create(
        model="any", input="Hi", instructions="Be brief.", temperature=0.5, top_p=0.9,
        max_output_tokens=50, metadata={"a": "b"}, user="u",
    )  # fmt: skip
    TypeAdapter(Response).validate_python(answer.to_dict())
    assert answer.output_text == "Hello wörld."
    assert (answer.status, answer.model, answer.error) == ("completed", "any", None)
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 50)
    assert (answer.instructions, answer.metadata, answer.user) == ("Be brief.", {"a": "b"}, "u")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens == 0
    (request,) = model.requests
    assert request.sampling.max_new_tokens == 50
    assert model.prompts == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    ]


def test_what_sglang_adds(http: httpx.Client, model: Paced) -> None:
    create(http, rid="mine", priority=3, cache_salt="s", top_k=5, min_p=0.1, seed=7, stop=["x"])
    (request,) = model.requests
    assert (request.rid, request.priority, request.namespace) == ("mine", 3, "s")
    assert (request.sampling.top_k, request.sampling.seed, request.sampling.stop) == (5, 7, ("x",))


@pytest.mark.parametrize(
    ("finish", "status", "item"),
    [
        (Finish("stop"), "completed", "completed"),
        (Finish("length"), "incomplete", "incomplete"),
        (Finish("abort"), "cancelled", "incomplete"),
        (Finish("error", message="nothing can follow"), "failed", "incomplete"),
    ],
)
def test_how_it_ends(
    http: httpx.Client, model: Paced, finish: Finish, status: str, item: str
) -> None:
    model.finish = finish
    found = create(http)
    assert (found["status"], found["output"][0]["status"]) == (status, item)
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert found["incomplete_details"] == details
    error = {"code": "server_error", "message": "nothing can follow"}
    assert found["error"] == (error if status == "failed" else None)
    last = stream(http)[-1]
    name = "incomplete" if status == "cancelled" else status
    assert last["type"] == f"response.{name}"
    assert last["response"]["status"] == status
    assert last["response"]["output"][0]["content"] == found["output"][0]["content"]


def test_an_empty_text_is_an_empty_message(client: openai.OpenAI, model: Paced) -> None:
    model.text = ""
    answer = client.responses.create(input="Hi")
    assert [item.type for item in answer.output] == ["message"]
    assert answer.output_text == ""


def test_a_typed_answer(client: openai.OpenAI, model: Paced) -> None:
    class Person(BaseModel):
        name: str
        age: int

    model.text = '{"name": "Nora", "age": 34}'
    answer = client.responses.parse(input="Nora?", text_format=Person)
    assert answer.output_parsed == Person(name="Nora", age=34)
    constraint = model.requests[0].sampling.constraint
    assert constraint is not None
    assert constraint.kind == "json_schema"
    assert "Nora" not in constraint.text
    assert set(json.loads(constraint.text)["properties"]) == {"name", "age"}
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_text_formats(http: httpx.Client, model: Paced) -> None:
    create(http, text={"format": {"type": "json_object"}, "verbosity": "low"})
    create(http, text={"format": {"type": "text"}})
    first, second = (request.sampling.constraint for request in model.requests)
    assert first is not None
    assert (first.kind, json.loads(first.text)) == ("json_schema", {"type": "object"})
    assert second is None


def test_effort_reaches_the_template(tmp_path: Path) -> None:
    byte_level(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["chat_template"] = "{{ reasoning_effort }}|{{ enable_thinking }}"
    file.write_text(json.dumps(config), encoding="utf-8")
    model = Paced(Tokenizer(tmp_path))
    with serve_scripted(model) as url, httpx.Client(base_url=url, timeout=60) as http:
        for more in (
            {"reasoning": {"effort": "none", "summary": "auto"}},
            {"reasoning": {"effort": "low"}},
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"enable_thinking": False}},
            {},
        ):
            found = create(http, **more)
    assert model.prompts == ["none|False", "low|True", "low|False", "|"]
    assert found["reasoning"] == {"effort": None, "summary": None}


# -- streams --------------------------------------------------------------------------------------


def test_the_events_of_a_text(http: httpx.Client) -> None:
    found = stream(http, model="any")
    names = kinds(found)
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert names[-4:] == [
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event["delta"] for event in found[4:-4]) == found[-4]["text"] == "Hello wörld."
    assert found[0]["response"]["status"] == "in_progress"
    assert found[0]["response"]["output"] == []
    assert found[0]["response"]["usage"] is None
    assert found[-1]["response"]["output"] == [found[-2]["item"]]
    assert found[-1]["response"]["usage"]["output_tokens"] == len("Hello wörld.")


def test_the_stream_helper(client: openai.OpenAI) -> None:
    seen = []
    with client.responses.stream(model="any", input="Hi") as events:
        for event in events:
            if event.type == "response.output_text.delta":
                seen.append(event.delta)
        final = events.get_final_response()
    assert "".join(seen) == final.output_text == "Hello wörld."
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_an_error_in_a_stream(http: httpx.Client, model: Paced) -> None:
    model.fault = (2, RuntimeError("secret"))
    found = stream(http)
    assert kinds(found)[-5:] == [
        "error", "output_text.done", "content_part.done", "output_item.done", "failed",
    ]  # fmt: skip
    assert found[-5]["code"] == "internal_error"
    failed = found[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    assert "secret" not in json.dumps(found)
    assert http.get(f"{PATH}/{failed['id']}").json() == failed
    assert is_error(http.post(PATH, json={"input": "Hi"}), 500)["code"] == "internal_error"


def test_an_error_before_the_stream_has_its_status(http: httpx.Client, model: Paced) -> None:
    model.fault = (0, RuntimeError("x"))
    is_error(http.post(PATH, json={"input": "Hi", "stream": True}), 500)


def test_log_probabilities(client: openai.OpenAI, http: httpx.Client, model: Paced) -> None:
    model.real, model.piece = True, 2
    model.text = f"Hello wörld {CALL}"
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 1,
                  "tools": [{**WEATHER, "strict": False}]}  # fmt: skip
    message = create(http, **asked)["output"][0]
    part = message["content"][0]
    data = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert data.decode().strip() == part["text"] == "Hello wörld"
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in part["logprobs"])
    found = stream(http, **asked)
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 2
    told = [entry for event in deltas for entry in event["logprobs"]]
    (done,) = (event for event in found if event["type"] == "response.output_text.done")
    assert told == done["logprobs"] == part["logprobs"]
    model.piece = 1
    assert create(http, **asked)["output"][0]["content"] == [part]
    model.text = "Well <tool_"  # held back to the end
    (part,) = create(http, **asked)["output"][0]["content"]
    data = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert data.decode() == part["text"] == "Well <tool_"
    answer = client.responses.create(input="Hi")
    assert answer.output[0].content[0].logprobs == []


# -- tools ----------------------------------------------------------------------------------------


def test_a_call_and_its_result(client: openai.OpenAI, model: Paced) -> None:
    model.text = f"I look.\n{CALL}"
    first = client.responses.create(input="Weather in Köln?", tools=[WEATHER])
    assert [item.type for item in first.output] == ["message", "function_call"]
    call = first.output[1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Köln"})
    assert call.status == "completed"
    model.text = "Rain."
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    by_id = client.responses.create(input=[result], previous_response_id=first.id, tools=[WEATHER])
    assert by_id.previous_response_id == first.id
    sent: Any = [{"role": "user", "content": "Weather in Köln?"}, *first.output, result]
    by_items = client.responses.create(input=sent, tools=[WEATHER], store=False)
    assert by_id.output_text == by_items.output_text == "Rain."
    assert model.prompts[1] == model.prompts[2]
    assert '"city": "Köln"' in model.prompts[1] or '"city":"Köln"' in model.prompts[1]
    assert model.prompts[1].endswith("rain<|im_end|>\n<|im_start|>assistant\n")


def test_a_streamed_call(client: openai.OpenAI, http: httpx.Client, model: Paced) -> None:
    model.text = f"I look.\n{CALL}\n{CALL}"
    found = stream(http, tools=[WEATHER])
    names = kinds(found)
    assert names.count("function_call_arguments.done") == 2
    assert names.count("output_item.added") == names.count("output_item.done") == 3
    with client.responses.stream(model="any", input="Hi", tools=[WEATHER]) as helper:
        snapshots = [
            event.snapshot
            for event in helper
            if event.type == "response.function_call_arguments.delta"
        ]
        final = helper.get_final_response()
    call = final.output[1]
    assert call.type == "function_call"
    assert call.arguments in snapshots
    assert call.parsed_arguments == {"city": "Köln"}


ONLY = {"type": "function", "name": "add"}


@pytest.mark.parametrize(
    ("choice", "tools", "required"),
    [
        ("none", 0, False),
        ("auto", 2, False),
        ("required", 2, True),
        ({"type": "function", "name": "add"}, 2, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [ONLY]}, 1, False),
        ({"type": "allowed_tools", "mode": "required", "tools": [ONLY]}, 1, True),
    ],
)
def test_tool_choices(
    http: httpx.Client, model: Paced, choice: Any, tools: int, required: bool
) -> None:
    found = create(http, tools=[{**WEATHER, "strict": False}, ONLY], tool_choice=choice)
    assert found["tool_choice"] == choice
    shown = sum(f'"name": "{name}"' in model.prompts[0] or f'"name":"{name}"' in model.prompts[0]
                for name in ("add", "get_weather"))  # fmt: skip
    assert shown == tools
    assert (model.requests[0].sampling.constraint is not None) == required


def test_a_call_that_is_cut(http: httpx.Client, model: Paced) -> None:
    model.text, model.finish = CALL[:60], Finish("length")
    first = create(http, tools=[WEATHER])
    (call,) = first["output"]
    assert (first["status"], call["status"]) == ("incomplete", "incomplete")
    with pytest.raises(ValueError):
        json.loads(call["arguments"])
    model.text, model.finish = "Well.", Finish("stop")
    create(http, input="Go on", previous_response_id=first["id"])  # without the broken call
    assert "tool_call" not in model.prompts[1]
    model.text, model.finish = CALL[: CALL.index("\n</")], Finish("length")
    assert create(http, tools=[WEATHER])["output"][0]["status"] == "completed"


# -- reasoning ------------------------------------------------------------------------------------


@pytest.fixture
def thinking(tmp_path: Path) -> Iterator[tuple[httpx.Client, Paced]]:
    """A model that thinks, and a template that writes what was thought."""
    byte_level(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["chat_template"] = (
        "{% for m in messages %}{{ m.role }}({{ m.reasoning_content }}): {{ m.content }}\n"
        "{% endfor %}"
    )
    file.write_text(json.dumps(config), encoding="utf-8")
    model = Paced(Tokenizer(tmp_path))
    model.text, model.real, model.piece = "<think>\nHm, wörd.\n</think>\n\nYes.", True, 1
    config = Config.of(reasoning_parser="qwen3")
    with serve_scripted(model, config) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http, model


def test_a_thought(thinking: tuple[httpx.Client, Paced]) -> None:
    http, model = thinking
    first = create(http, include=["message.output_text.logprobs"])
    thought, said = first["output"]
    assert (thought["type"], said["type"]) == ("reasoning", "message")
    assert thought["content"][0]["text"].strip() == "Hm, wörd."
    part = said["content"][0]
    assert part["text"] == "Yes."
    told = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert told.decode().lstrip() == "Yes."
    usage = first["usage"]
    tokens = len(model.tokenizer.encode(model.text.split("\n\n")[0]))
    assert usage["output_tokens_details"]["reasoning_tokens"] == pytest.approx(tokens, abs=3)
    found = stream(http)
    names = kinds(found)
    assert names.count("reasoning_text.done") == names.count("output_text.done") == 1
    assert names.index("reasoning_text.done") < names.index("output_text.delta")
    whole = found[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in whole] == [thought["content"][0]["text"], "Yes."]
    create(http, input="And?", previous_response_id=first["id"])
    assert model.prompts[-1].strip() == (
        f"user(): Hi\nassistant({thought['content'][0]['text']}): Yes.\nuser(): And?"
    )
    plain = create(http, separate_reasoning=False)
    assert [item["content"][0]["text"] for item in plain["output"]] == [model.text]


# -- the store ------------------------------------------------------------------------------------


def test_a_conversation(client: openai.OpenAI, model: Paced) -> None:
    first = client.responses.create(input="One", instructions="Be brief.")
    second = client.responses.create(input="Two", previous_response_id=first.id)
    client.responses.create(input="Three", previous_response_id=second.id)
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    said = "Hello wörld.<|im_end|>\n"
    assert model.prompts[2] == said.join(turn.format(each) for each in ("One", "Two", "Three"))
    items = client.responses.input_items.list(second.id)
    assert [item.content[0].text for item in items.data] == ["Two"]
    reference: Any = [{"type": "item_reference", "id": first.output[0].id},
                      {"id": items.data[0].id}, {"role": "user", "content": "Four"}]  # fmt: skip
    client.responses.create(input=reference)
    assert model.prompts[3].count("Hello wörld.") == 1
    assert "Two" in model.prompts[3]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"
    assert first.id in str(caught.value)


def test_what_is_not_stored(client: openai.OpenAI, http: httpx.Client) -> None:
    answer = client.responses.create(input="Hi", store=False)
    for id in (answer.id, "resp_nothing", "%00"):
        replies = [http.get(f"{PATH}/{id}"), http.delete(f"{PATH}/{id}")]
        replies += [http.post(f"{PATH}/{id}/cancel"), http.get(f"{PATH}/{id}/input_items")]
        for reply in replies:
            assert is_error(reply, 404)["code"] == "not_found"
    reply = http.post(PATH, json={"input": "Hi", "previous_response_id": answer.id})
    error = is_error(reply, 400)
    assert (error["code"], error["param"]) == (
        "previous_response_not_found", "previous_response_id",
    )  # fmt: skip


def test_pages_of_input(client: openai.OpenAI, http: httpx.Client) -> None:
    sent: Any = [{"role": "user", "content": str(i)} for i in range(7)]
    for item in sent[3:]:
        item["id"] = "msg_again"  # only one of the items that share an id keeps it
    answer = client.responses.create(input=sent)
    listed = list(client.responses.input_items.list(answer.id, limit=3, order="asc"))
    assert [item.content[0].text for item in listed] == list("0123456")
    page = http.get(f"{PATH}/{answer.id}/input_items").json()
    assert [item["content"][0]["text"] for item in page["data"]] == list("6543210")
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert page["has_more"] is False
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing"):
        is_error(http.get(f"{PATH}/{answer.id}/input_items?{query}"), 400)


def test_deleting(client: openai.OpenAI, http: httpx.Client) -> None:
    answer = client.responses.create(input="Hi")
    assert http.delete(f"{PATH}/{answer.id}").json() == {
        "id": answer.id, "object": "response", "deleted": True,
    }  # fmt: skip
    is_error(http.delete(f"{PATH}/{answer.id}"), 404)


def test_counting(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(input="Hi", instructions="Be brief.")
    answer = client.responses.create(input="Hi", instructions="Be brief.")
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


# -- the background -------------------------------------------------------------------------------


def test_in_the_background(client: openai.OpenAI, model: Paced) -> None:
    model.held.set()
    answer = client.responses.create(input="Hi", background=True)
    assert (answer.status, answer.background, answer.output) == ("queued", True, [])
    with pytest.raises(openai.BadRequestError, match="still being written"):
        client.responses.create(input="x", previous_response_id=answer.id)
    model.held.clear()
    ended = wait(client, answer.id)
    assert (ended.status, ended.output_text) == ("completed", "Hello wörld.")
    assert client.responses.cancel(answer.id).status == "completed"
    client.responses.create(input="x", previous_response_id=answer.id)


def test_cancelling(client: openai.OpenAI, model: Paced) -> None:
    model.text, model.seconds = "x" * 5000, 0.01
    answer = client.responses.create(input="Hi", background=True)
    while not model.requests:
        time.sleep(0.005)
    ended = client.responses.cancel(answer.id)
    assert ended.status == "cancelled"
    assert model.closed == 1
    assert client.responses.cancel(answer.id).to_dict() == ended.to_dict()
    assert client.responses.retrieve(answer.id).to_dict() == ended.to_dict()
    queued = client.responses.create(input="Hi", background=True)
    client.responses.delete(queued.id)
    assert model.closed == len(model.requests)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(queued.id)
    model.text, model.seconds = "short", 0.0
    plain = client.responses.create(input="Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(plain.id)


def test_a_background_stream_may_be_joined(
    client: openai.OpenAI, http: httpx.Client, model: Paced
) -> None:
    model.text, model.seconds = "Hello wörld. " * 5, 0.01
    body = {"input": "Hi", "background": True, "stream": True}
    with http.stream("POST", PATH, json=body) as reply:
        next(reply.iter_raw())  # the client disconnects after one piece
    id = model.requests[0].rid
    everything = events(http.get(f"{PATH}/{id}?stream=true"))
    assert kinds(everything)[:3] == ["created", "queued", "in_progress"]
    assert everything[0]["response"]["status"] == "queued"
    assert everything[-1]["response"] == client.responses.retrieve(id).to_dict()
    assert everything[-1]["response"]["output"][0]["content"][0]["text"] == model.text
    rest = client.responses.retrieve(id, stream=True, starting_after=7)
    assert [event.sequence_number for event in rest] == list(range(8, len(everything)))
    last = len(everything) - 1
    assert list(client.responses.retrieve(id, stream=True, starting_after=last)) == []
    for query in ("stream=true&starting_after=x", "stream=true&starting_after=-1", "stream=yes"):
        is_error(http.get(f"{PATH}/{id}?{query}"), 400)


def test_a_background_stream_that_is_cancelled(http: httpx.Client, model: Paced) -> None:
    model.text, model.seconds = "x" * 5000, 0.01
    body = {"input": "Hi", "background": True, "stream": True}
    with http.stream("POST", PATH, json=body) as reply:
        frames, lines = [], reply.iter_lines()
        for line in lines:
            frames.append(line)
            if line.startswith("event: response.output_text.delta"):
                break
        ended = http.post(f"{PATH}/{model.requests[0].rid}/cancel").json()
        frames += list(lines)
    assert ended["status"] == "cancelled"
    last = json.loads([line for line in frames if line.startswith("data: ")][-1][6:])
    assert (last["type"], last["response"]) == ("response.incomplete", ended)
    assert model.closed == 1


def test_a_background_error(client: openai.OpenAI, http: httpx.Client, model: Paced) -> None:
    model.fault = (0, RuntimeError("secret"))
    answer = client.responses.create(input="Hi", background=True)
    ended = wait(client, answer.id)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error.code == "server_error"
    assert "secret" not in ended.to_json()
    reply = http.get(f"{PATH}/{answer.id}?stream=true")
    assert is_error(reply, 400)["param"] == "stream"


def test_the_background_is_bounded(
    client: openai.OpenAI, model: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang.srt.web.openai.responses.event_log.MAX_BACKGROUND", 3)
    model.text, model.seconds = "x" * 5000, 0.05
    begun = [client.responses.create(input="Hi", background=True) for _ in range(3)]
    with pytest.raises(openai.RateLimitError, match="background"):
        client.responses.create(input="Hi", background=True)
    for answer in begun:
        assert client.responses.cancel(answer.id).status == "cancelled"
    assert model.closed == len(model.requests)
    model.seconds, model.text = 0.0, "short"
    answer = client.responses.create(input="Hi", background=True)
    assert wait(client, answer.id).status == "completed"


# -- refused --------------------------------------------------------------------------------------

IMAGE = {"type": "input_image", "image_url": "http://x"}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "input is missing"),
    ({"input": []}, "input", "input is missing"),
    ({"input": 5}, "input", "input is missing"),
    ({"input": [5]}, "input", "input[0] is no object"),
    ({"input": [{"role": "king", "content": "x"}]}, "input", "input[0].role is 'king'"),
    ({"input": [{"role": "user"}]}, "input", "input[0].content"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input", "reads text only"),
    ({"input": [{"role": "system", "content": [IMAGE]}]}, "input", "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{**IMAGE, "image_url": 5}]}]}, "input",
     "input[0].content[0].image_url is missing"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "web_search_call"),
    ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input", "no stored item"),
    ({"input": [{"type": "item_reference"}]}, "input", "no stored item"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input",
     "no call before"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
     "input", "input[0].arguments is not valid JSON"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"messages": [{"role": "user", "content": "x"}]}, "messages", "use input"),
    ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
    ({"n": 2}, "n", "n is 2"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"truncation": "auto"}, "truncation", "disabled"),
    ({"background": True, "store": False}, "store", "background needs store"),
    ({"include": ["everything"]}, "include", "everything"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "not available"),
    ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type is 'web_search'"),
    ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools", "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, "tools",
     "tools[0].parameters"),
    ({"tools": [{"type": "function", "name": "f", "strict": "yes"}]}, "tools", "tools[0].strict"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice",
     "get_weather"),
    ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", "'any'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "tool_choice", "'mcp'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice",
     "tool_choice.tools"),
    ({"tool_choice": "required"}, "tool_choice", "without tools"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format", "'yaml'"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "schema"),
    ({"reasoning": {"effort": 5}}, "reasoning", "effort"),
    ({"reasoning": {"effort": "big"}}, "reasoning.effort", "'big'"),
    ({"metadata": {"k": "v" * 513}}, "metadata", "512"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "17"),
    ({"metadata": {"k": 5}}, "metadata", "str"),
    ({"safety_identifier": "x" * 513}, "safety_identifier", "513"),
    ({"top_logprobs": 1000}, "top_logprobs", "1000"),
    ({"temperature": -1}, "temperature", "-1"),
    ({"input": "word " * 9000}, "input", "4096"),
    ({"chat_template": "x"}, "chat_template", "--chat-template"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
@pytest.mark.parametrize("how", [{}, {"stream": True}, {"background": True}])
def test_what_is_refused(
    http: httpx.Client, fields: dict[str, Any], param: str, words: str, how: dict[str, Any]
) -> None:
    reply = http.post(PATH, json={"input": "Hi", **how, **fields})
    error = is_error(reply, 403 if param == "chat_template" else 400)
    assert error["param"] == param
    assert words in error["message"]
