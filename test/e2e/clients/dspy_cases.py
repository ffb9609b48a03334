"""Cases that test_dspy.py runs if DSPy can be imported: SGLang(...) over an engine, a URL and a
scripted backend; DSPy's own LM and launcher against our server; the example."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import httpx
import pytest
import sglang as sgl
from dspy import lm15
from dspy.clients.lm_local import LocalProvider
from dspy.utils import exceptions
from sglang.backend.base import Prompt
from sglang.errors import BackendError, ConnectionFailed, TimedOut, Unsupported
from sglang.integrations.dspy import SGLang
from sglang.ir.params import GenParams

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "python" / "srt" / "assets" / "sglang-tiny"
SUM = "What is 17 + 25?"
MESSAGES = [{"role": "user", "content": SUM}]
CHATML = f"<|im_start|>user\n{SUM}<|im_end|>\n<|im_start|>assistant\n"
JSON = '{"answer": "blue"}'


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with sgl.Engine(max_total_tokens=16384, log_level="warning", device="cpu") as engine:
        yield engine


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with sgl.Runtime(max_total_tokens=16384, log_level="warning", device="cpu") as runtime:
        yield runtime


class Constrained(sgl.Mock):
    """Enforces schemas, so it says."""

    name = "constrained mock"

    def __init__(self, script: Any) -> None:
        super().__init__(script, constraints=["json_schema"])


def lm_over(target: Any, **options: Any) -> Any:
    return SGLang(target, **{"temperature": 0.0, "cache": False, "num_retries": 0, **options})


# The engine


def test_a_call_is_the_chat_template_around_the_messages(engine: Any) -> None:
    lm = lm_over(engine)
    assert isinstance(lm, dspy.BaseLM)
    assert lm.model == "sglang/sglang-tiny"
    direct = engine.generate(CHATML, {"temperature": 0, "stop": ["<|im_end|>"]})
    assert lm(SUM) == lm(messages=MESSAGES) == asyncio.run(lm.acall(SUM)) == [direct["text"]]
    usage = lm.history[-1]["usage"]
    assert usage["prompt_tokens"] == direct["meta_info"]["prompt_tokens"]
    assert usage["completion_tokens"] == direct["meta_info"]["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_n_max_tokens_stop_and_logprobs(engine: Any) -> None:
    lm = lm_over(engine)
    assert len(lm(SUM, n=3, temperature=1.0)) == 3
    assert lm(SUM, max_tokens=1) == ["4"]
    assert lm(SUM, stop=["2"]) == ["4"]
    (output,) = lm(SUM, max_tokens=1, logprobs=True, top_logprobs=2)
    (entry,) = output["logprobs"]["content"]
    assert entry["token"] == "4"
    assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] < 0


def test_a_stream_carries_the_text_of_the_whole_reply(engine: Any) -> None:
    lm, config = lm_over(engine), lm15.Config(max_tokens=16, temperature=0.0, logprobs=0)
    request = lm15.Request(lm.model, (lm15.Message.user(SUM),), config=config)
    whole = lm(request)

    async def gathered() -> list[Any]:
        return [event async for event in lm._async_engine_spec.stream(request)]

    for events in (list(lm.engine.stream(request)), asyncio.run(gathered())):
        deltas = [event.delta for event in events if event.type == "delta"]
        assert "".join(delta.text for delta in deltas) == whole.text
        assert deltas[-1].logprobs == whole.logprobs
        assert events[-1].finish_reason == whole.finish_reason == "stop"


def test_streamify_shows_a_field_as_it_grows() -> None:
    backend = sgl.Mock(["[[ ## answer ## ]]\nthe blue lamp\n\n[[ ## completed ## ]]"])
    listener = dspy.streaming.StreamListener(signature_field_name="answer")
    answer = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])

    async def chunks() -> list[Any]:
        with dspy.context(lm=lm_over(backend)):
            return [item async for item in answer(question="Which?")]

    *parts, prediction = asyncio.run(chunks())
    assert "".join(part.chunk for part in parts) == prediction.answer == "the blue lamp"
    assert len(parts) > 2


def test_a_predictors_second_call_has_a_cached_prefix(engine: Any) -> None:
    engine.flush_cache()
    sent: list[list[int]] = []
    predict = dspy.Predict("question -> answer")
    predict.demos = [dspy.Example(question=f"{i}?", answer=str(i)) for i in range(4)]
    before = engine.get_server_info()["stats"]["cached_tokens"]
    with dspy.context(lm=lm_over(engine), adapter=Whole()):
        for question in ("Where is the lamp?", "Who has the rope?"):
            predict(question=question)
            entry = predict.history[-1]
            turns = "".join(
                f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in entry["messages"]
            )
            sent.append(engine.tokenizer.encode(turns + "<|im_start|>assistant\n"))
            assert entry["usage"]["prompt_tokens"] == len(sent[-1])
    first, second = sent
    shared = next(i for i, (a, b) in enumerate(zip(first, second)) if a != b)
    details = predict.history[-1]["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == shared > 0.8 * len(first)
    assert engine.get_server_info()["stats"]["cached_tokens"] - before == shared


class Whole(dspy.ChatAdapter):
    """DSPy's prompt; whatever comes is the answer."""

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return dict.fromkeys(signature.output_fields, completion)


def test_copies_of_a_program_share_the_engine(engine: Any) -> None:
    predict = dspy.Predict("question -> answer")
    predict.lm = lm_over(engine)
    for copied in (copy.deepcopy(predict), predict.deepcopy(), predict.reset_copy()):
        assert copied.lm is None or copied.lm.engine is predict.lm.engine
    assert predict.lm.copy(temperature=1.0)(SUM)


def test_a_prompt_that_is_too_long_is_what_dspys_agents_expect(engine: Any) -> None:
    with pytest.raises(exceptions.ContextWindowExceededError, match="context length is 4096"):
        lm_over(engine)("lamp " * 5000)


# Constraints


def test_a_signatures_outputs_become_a_json_schema() -> None:
    backend = Constrained([JSON])
    predict = dspy.Predict("question -> answer")
    with dspy.context(lm=lm_over(backend), adapter=dspy.JSONAdapter()):
        assert predict(question="Which color?").answer == "blue"
    params = backend.calls[0].params
    assert params is not None
    schema = params.json_schema
    assert schema["required"] == ["answer"]
    assert schema["properties"]["answer"]["type"] == "string"


def test_a_backend_without_constraints_is_warned_of_and_prompted() -> None:
    backend = sgl.Mock([JSON] * 2)
    predict = dspy.Predict("question -> answer")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with dspy.context(lm=lm_over(backend), adapter=dspy.JSONAdapter()):
            assert predict(question="Which color?").answer == "blue"
        with dspy.context(lm=lm_over(backend), adapter=dspy.JSONAdapter()):
            assert asyncio.run(predict.acall(question="Which color?")).answer == "blue"
    assert [c.params and c.params.json_schema for c in backend.calls] == [None, None]
    assert all(c.params is not None for c in backend.calls)
    said = [str(w.message) for w in caught if "JSON schema" in str(w.message)]
    assert len(said) == 1
    assert "mock" in said[0]
    assert not [w for w in caught if w.category is DeprecationWarning and "dspy" in str(w.message)]


# Requests


def test_async_calls_use_the_backends_own() -> None:
    class Native(sgl.Mock):
        async def acomplete(self, prompt: Prompt, params: GenParams) -> Any:
            return sgl.Mock.complete(self, prompt, params)

        def complete(self, prompt: Prompt, params: GenParams) -> Any:
            raise AssertionError("the synchronous call")

    assert asyncio.run(lm_over(Native(["yes"])).acall("Well?")) == ["yes"]


def test_roles_images_and_defaults() -> None:
    backend = sgl.Mock(["ok"] * 2, chat_template="qwen")
    lm = lm_over(backend)
    url = "data:image/png;base64,iVBORw0KGgo="
    picture = {"type": "image_url", "image_url": {"url": url}}
    lm(messages=[{"role": "user", "content": [{"type": "text", "text": "See"}, picture]}])
    prompt, params = backend.calls[0].prompt, backend.calls[0].params
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert prompt.text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>")
    assert prompt.text.endswith("See<image><|im_end|>\n<|im_start|>assistant\n")
    assert [m.address for m in prompt.media] == [url]
    assert params is not None
    assert params.max_new_tokens == 1024
    assert params.stop == ("<|im_end|>",)
    turns = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")]
    lm(messages=[{"role": role, "content": text} for role, text in turns], seed=7, top_p=0.5)
    prompt, params = backend.calls[1].prompt, backend.calls[1].params
    assert [(m["role"], m["content"]) for m in prompt.messages] == turns
    assert params is not None
    assert (params.seed, params.top_p) == (7, 0.5)


class Search(dspy.Signature):
    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def calc(text: str) -> int:
    """Value of a product."""
    left, right = text.split("*")
    return int(left) * int(right)


def test_native_calls_are_those_of_the_model(engine: Any) -> None:
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with dspy.context(lm=lm_over(engine), adapter=adapter):
        predict = dspy.Predict(Search, tool_choice="required")
        made = predict(question="What is 417 * 23?", tools=[dspy.Tool(calc)])
    (call,) = made.calls.tool_calls
    assert call.name == "calc"


def test_calls_and_results_go_round() -> None:
    call = '<tool_call>\n{"name": "calc", "arguments": {"text": "2*3"}}\n</tool_call>'
    backend = sgl.Mock(["One. " + call, "6", call], constraints=["structural_tag"])
    lm, said = lm_over(backend), lm15.Message.user("What?")
    tools = (lm15.FunctionTool("calc", "Value.", {"type": "object", "properties": {}}),)
    first = lm(lm15.Request(lm.model, (said,), tools=tools))
    words, made = first.message.parts
    assert (words.text, made.name, made.input) == ("One.", "calc", {"text": "2*3"})
    assert first.finish_reason == "tool_call"
    turns = (said, first.message, lm15.Message.tool(made.id, "6"))
    chosen = lm15.Config(tool_choice=lm15.ToolChoice("required", ("calc",)))
    assert lm(lm15.Request(lm.model, turns, tools=tools)).text == "6"
    asked = backend.calls[1].prompt
    assert asked.text.startswith(backend.calls[0].prompt.text)
    assert [m["role"] for m in asked.messages] == ["user", "assistant", "tool"]
    request = lm15.Request(lm.model, (said,), tools=tools, config=chosen)
    events = list(lm.engine.stream(request))
    deltas = [event.delta for event in events if event.type == "delta"]
    assert [delta.name for delta in deltas] == ["calc"]
    assert events[-1].finish_reason == "tool_call"
    params = backend.calls[2].params
    assert params is not None
    assert '"tags_with_separator"' in str(params.structural_tag)


def test_what_cannot_be_honoured_is_refused() -> None:
    lm, said = lm_over(sgl.Mock(["ok"])), lm15.Message.user("x")
    tool = lm15.FunctionTool(name="f", parameters={"type": "object", "properties": {}})
    single = lm15.Config(tool_choice=lm15.ToolChoice(parallel=False))
    for refused, name in (
        (lm15.Request(lm.model, (said,), tools=(lm15.BuiltinTool("web"),)), "no built-in tool"),
        (lm15.Request(lm.model, (said,), tools=(tool,), config=single), "one call a turn"),
        (lm15.Request(lm.model, (said,), config=lm15.Config(store=True)), "sglang has no store"),
    ):
        with pytest.raises(exceptions.LMUnsupportedFeatureError, match=name):
            lm(refused)
    config = lm15.Config(extensions={"min_p": 0.1})
    assert lm(lm15.Request(lm.model, (said,), config=config)).text == "ok"
    assert lm.engine.backend.calls[0].params.min_p == 0.1
    with pytest.raises(TypeError, match="not a backend"):
        SGLang(object())
    with pytest.raises(TypeError, match="api_key is for a URL"):
        SGLang(sgl.Mock(), api_key="k")


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        ({"min_p": "x"}, r"config\.extensions\['min_p'\] is 'x'; give a"),
        ({"min_p": 2}, r"config\.extensions\['min_p'\] is 2"),
        ({"temperature": 1, "stop": "a"}, "has stop, temperature; set config.stop, config.temper"),
        (
            {"json_schema": {}, "max_new_tokens": 4},
            "has json_schema, max_new_tokens; set config.response_format, config.max_tokens",
        ),
    ],
)
def test_extensions_that_cannot_be_are_named(extensions: Any, message: str) -> None:
    lm, said = lm_over(sgl.Mock(["ok"])), lm15.Message.user("x")
    with pytest.raises(exceptions.LMInvalidRequestError, match=message):
        lm(lm15.Request(lm.model, (said,), config=lm15.Config(extensions=extensions)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BackendError("no", 400), exceptions.LMInvalidRequestError),
        (BackendError("no", 401), exceptions.LMAuthError),
        (BackendError("no", 429), exceptions.LMRateLimitError),
        (BackendError("no", 503), exceptions.LMServerError),
        (BackendError("no"), exceptions.LMProviderError),
        (ConnectionFailed("no"), exceptions.LMTransportError),
        (TimedOut("no"), exceptions.LMTimeoutError),
        (Unsupported("no"), exceptions.LMUnsupportedFeatureError),
    ],
)
def test_errors_are_dspys(error: Exception, kind: type[Exception]) -> None:
    lm = lm_over(sgl.Mock([error, error]))
    with pytest.raises(kind, match="no"):
        lm("x")
    with pytest.raises(kind, match="no"):
        asyncio.run(lm.acall("x"))


# The server


def test_a_url_and_dspys_own_lm_answer_alike(runtime: Any) -> None:
    body = {"messages": MESSAGES, "temperature": 0.0, "max_tokens": 16}
    direct = httpx.post(runtime.url + "/v1/chat/completions", json=body, timeout=60).json()
    own = dspy.LM(
        "openai/default", api_base=runtime.url + "/v1", api_key="x",
        temperature=0.0, max_tokens=16, cache=False,
    )  # fmt: skip
    for lm in (own, lm_over(runtime.url), lm_over(runtime), lm_over(runtime.endpoint)):
        assert lm(SUM) == [direct["choices"][0]["message"]["content"]]
        usage = lm.history[-1]["usage"]
        for name in ("prompt_tokens", "completion_tokens"):
            assert usage[name] == direct["usage"][name] > 0
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    with pytest.raises(BackendError, match="no runtime answers"):
        SGLang("http://127.0.0.1:9")


def test_dspys_launcher_starts_and_stops_our_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    lm = dspy.LM(
        f"openai/local:{TINY}", provider=LocalProvider(), temperature=0.0, max_tokens=16,
        cache=False,
    )  # fmt: skip
    lm.launch({"timeout": 120})
    process = lm.process
    try:
        assert lm(SUM) == ["42"]
        assert "sglang serving" in lm.get_logs()
    finally:
        lm.kill()
    assert process.poll() is not None


def test_the_example_answers_from_the_passages() -> None:
    spec = importlib.util.spec_from_file_location("rag", ROOT / "examples" / "dspy" / "rag.py")
    assert spec is not None
    assert spec.loader is not None
    rag = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rag)
    assert rag.main() == ["Porto", "Bergen", "63", "Oscar", "cellar", "30"]
