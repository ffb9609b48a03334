"""Every field of upstream SGLang's requests: honoured, ignored without harm, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.config import Config
from sglang.srt.requests.completion.completion_request import namespace_of
from sglang.srt.runtime.conversations.chat_request import ChatRequest, _variables
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.request_fields import IGNORED, UNSUPPORTED
from sglang.srt.runtime.vectors import EncodeRequest
from sglang.srt.web.journal import Journal
from sglang.srt.web.openai.completions import CompletionBody
from sglang.srt.web.openai.embeddings import EmbeddingBody
from sglang.srt.web.telemetry.request_record import RequestRecord

SALTED = {"cache_salt": "a", "extra_key": "b"}
ROUTING = {"routed_dp_rank": 1, "data_parallel_rank": 1, "disagg_prefill_dp_rank": 1}
BOOTSTRAP = {"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": [0]}
ROUTED = {"return_routed_experts": True, "routed_experts_start_len": 2}
SHARED = {  # fields of OpenAI's two completion routes
    "model": "m", "frequency_penalty": 0.5, "logit_bias": {"5": 1.0}, "n": 2,
    "presence_penalty": 0.5, "seed": 1, "stop": ["x"], "stream": False, "stream_options": None,
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "min_tokens": 1, "regex": ...,
    "ebnf": ...,
    "repetition_penalty": 1.1, "stop_token_ids": [3], "stop_regex": "b", "no_stop_trim": True,
    "ignore_eos": True, "skip_special_tokens": False, "response_format": {"type": "text"},
    "rid": "r", "priority": 1, **SALTED,
}  # fmt: skip
SHARED_IGNORED = {
    "user": "u", "session_id": "s", "custom_params": {"a": 1}, "ngram_corpus_id": "c",
}  # fmt: skip
SHARED_REFUSED = {
    "return_hidden_states": True, "return_cached_tokens_details": True,
    "session_params": {"id": "s"}, "custom_logit_processor": "{}", "images_config": {"a": 1},
    **ROUTING, **BOOTSTRAP, **ROUTED,
}  # fmt: skip

# Route: its body, the least that it takes, and upstream's fields with a value that asks for
# something. ``...``: the field is declared, and another test has its effect.
Fields = dict[str, Any]
TABLE: dict[str, tuple[Any, Fields, Fields, Fields, Fields]] = {
    "/generate": (
        GenerateRequest,
        {"text": "a", "sampling_params": {"max_new_tokens": 2}},
        {"rid": "r", "text": ..., "input_ids": ..., "image_data": ..., "video_data": ...,
         "sampling_params": {"max_new_tokens": 1}, "return_logprob": True, "logprob_start_len": 0,
         "top_logprobs_num": 2, "token_ids_logprob": [1], "return_text_in_logprobs": True,
         "stream": False, "lora_path": ..., "priority": 1, "no_logs": True,
         "session_params": ..., "return_hidden_states": ..., **SALTED},
        {"session_id": "s", "mm_hashes": ["0"], "mm_content_hashes": ["0"], "log_metrics": False,
         "modalities": ["image"], "lora_id": "x", "kv_router_hint": {"a": 1}, "routing_key": "k",
         "conversation_id": "c", "http_worker_ipc": "i", "background": True,
         "custom_labels": {"a": "b"}, "return_bytes": True, "external_trace_header": {"a": "b"},
         "received_time": 1.0},
        {"input_embeds": [[0.5]], "audio_data": "x", "use_audio_in_video": True,
         "video_config": {"fps": 1}, "return_sampling_mask": True,
         "return_flat_raw_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True,
         **ROUTED, "return_indexer_topk": True, "custom_logit_processor": [None, "{}"],
         "positional_embed_overrides": {"a": 1}, **BOOTSTRAP, "bootstrap_pair_key": "k",
         "decode_tp_size": 2, **ROUTING, "require_reasoning": True, "max_thinking_tokens": 5,
         "return_entropy": True, "return_prompt_token_ids": True, "need_wait_for_mm_inputs": True,
         "num_items_assigned": {"image": [1]}, "encoder_urls": ["u"], "max_dynamic_patch": 2,
         "min_dynamic_patch": 1, "image_max_dynamic_patch": 2, "video_max_dynamic_patch": 2,
         "images_config": {"a": 1}, "multi_item_delimiter_indices": [0]},
    ),
    "/v1/completions": (
        CompletionBody,
        {"prompt": "a", "max_tokens": 2},
        {**SHARED, "prompt": "b", "best_of": 2, "echo": True, "logprobs": 1, "max_tokens": 1,
         "json_schema": ..., "return_token_ids": True, "lora_path": ...},
        SHARED_IGNORED,
        {**SHARED_REFUSED, "suffix": "x"},
    ),
    "/v1/chat/completions": (
        ChatRequest,
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
        {**SHARED, "logprobs": True, "top_logprobs": ..., "max_tokens": 1,
         "max_completion_tokens": 1, "tools": ..., "tool_choice": "none",
         "parallel_tool_calls": True, "reasoning_effort": "low", "reasoning": {"effort": "low"},
         "continue_final_message": ..., "separate_reasoning": False, "stream_reasoning": False,
         "chat_template_kwargs": {"a": 1}, "lora_path": ..., "messages": ...},
        {**SHARED_IGNORED, "task": "domain"},
        {**SHARED_REFUSED, "return_prompt_token_ids": True, "return_token_ids": True,
         "return_meta_info": True, "max_dynamic_patch": 2, "min_dynamic_patch": 1,
         "use_audio_in_video": True, "input_ids": [0], "web_search_options": {"a": 1}},
    ),
    "/v1/embeddings": (
        EmbeddingBody,
        {"input": "a"},
        {"input": ["b"], "model": "m", "encoding_format": "base64", "dimensions": 2, "rid": "r",
         "priority": 1, "lora_path": ..., **SALTED},
        {"user": "u"},
        {"embed_override_token_id": 3, "embed_overrides": [[[0.5]]]},
    ),
    "/encode": (
        EncodeRequest,
        {"text": "a"},
        {"text": "b", "input_ids": ..., "rid": "r", "priority": 1, "dimensions": 2,
         "lora_path": ..., **SALTED},
        {"log_metrics": False, "modalities": ["image"], "background": True, "lora_id": "x",
         "external_trace_header": {"a": "b"}, "received_time": 1.0, "routing_key": "k",
         "http_worker_ipc": "i"},
        {"image_data": "x", "video_data": "x", "audio_data": "x", "input_embeds": [[0.5]],
         "is_cross_encoder": True, "data_parallel_rank": 1, "return_pooled_hidden_states": True,
         "positional_embed_overrides": [1], "multi_item_delimiter_indices": [0]},
    ),
}  # fmt: skip

CASES = [
    (path, kind, name, value)
    for path, (_, _, *classes) in TABLE.items()
    for kind, fields in zip(("honoured", "ignored", "refused"), classes)
    for name, value in fields.items()
    if value is not ...
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


@pytest.mark.parametrize(("path", "kind", "name", "value"), CASES)
def test_a_field_of_upstream_is_never_ignored_where_it_matters(
    http: httpx.Client, path: str, kind: str, name: str, value: Any
) -> None:
    body, least = TABLE[path][:2]
    reply = http.post(path, json={**least, name: value})
    if kind == "refused":
        error = is_error(reply, 400)
        assert (error["param"], error["code"]) == (name, "unsupported")
        assert name in error["message"]
        return
    assert reply.status_code == 200, reply.text
    assert (name in body.__struct_fields__) == (kind == "honoured") or name in IGNORED


@pytest.mark.parametrize("path", TABLE)
def test_fields_that_ask_for_nothing_are_accepted(http: httpx.Client, path: str) -> None:
    """Clients send defaults: null, false, 0, and lists of them."""
    _, least, _, _, refused = TABLE[path]
    for nothing in (None, False, 0, [], [None, False]):
        reply = http.post(path, json={**least, **dict.fromkeys(refused, nothing)})
        assert reply.status_code == 200, reply.text


def test_no_field_is_in_two_classes() -> None:
    assert not IGNORED & UNSUPPORTED.keys()
    for body, *_ in TABLE.values():  # "modalities" of a chat may ask for audio
        assert not set(body.__struct_fields__) & (IGNORED - {"user", "modalities"})


def cached(http: httpx.Client, **body: Any) -> int:
    body = {"text": "one and the same long prompt", "sampling_params": {"max_new_tokens": 1}} | body
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    found: int = reply.json()["meta_info"]["cached_tokens"]
    return found


def test_extra_key_and_cache_salt_both_isolate(http: httpx.Client) -> None:
    pairs = [("", ""), ("", "k"), ("k", ""), ("k", "k"), ("kk", ""), ("", "kk"), ("\0000:", "k")]
    for salt, extra in pairs:
        assert cached(http, cache_salt=salt, extra_key=extra) == 0, (salt, extra)
    for salt, extra in pairs:
        assert cached(http, cache_salt=salt, extra_key=extra) > 0, (salt, extra)


def test_extra_key_isolates_on_every_route(http: httpx.Client) -> None:
    routes: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "a prompt of this test", "max_tokens": 1}),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": "a chat of this test"}], "max_tokens": 1}),
        ("/v1/embeddings", {"input": "an input of this test"}),
    ]  # fmt: skip
    for path, body in routes:
        found = []
        for extra in ("x", "y", "x"):
            usage = http.post(path, json={**body, "extra_key": path + extra}).json()["usage"]
            found.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
        assert found == [False, False, True], path


def test_extra_key_may_be_one_for_each_prompt(http: httpx.Client) -> None:
    def ask(**keys: Any) -> list[int]:
        body = {"text": ["a prompt for two", "a prompt for two"], **keys}
        body["sampling_params"] = {"max_new_tokens": 1}
        found = http.post("/generate", json=body).json()
        return [one["meta_info"]["cached_tokens"] for one in found]

    assert ask(extra_key=["p", None], cache_salt=[None, "p"]) == [0, 0]
    assert all(ask(extra_key=["p", None], cache_salt=[None, "p"]))
    reply = http.post("/generate", json={"text": ["a", "b"], "extra_key": ["p"]})
    assert is_error(reply, 400)["param"] == "extra_key"


TEXT = st.text(st.sampled_from("\x00:01ab"), max_size=5)


@given(TEXT, TEXT, TEXT, TEXT)
def test_namespaces_of_different_pairs_differ(a: str, b: str, c: str, d: str) -> None:
    assert (namespace_of(a, b) == namespace_of(c, d)) == ((a, b) == (c, d))
    if "\0" not in a:
        assert namespace_of(a, None) == a


def test_no_logs_keeps_texts_out_of_the_log(served: Served) -> None:
    config, served.state.runtime.config = (
        served.state.runtime.config,
        Config.of(log_requests=True, log_requests_level=3),
    )
    journal = Journal(served.app, served.state, ())
    served.state.runtime.config = config
    seen: list[RequestRecord] = []
    begin = RequestRecord.begin

    def noting(self: RequestRecord, request: Any) -> None:
        seen.append(self)
        begin(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestRecord, "begin", noting)
        for private in (False, True):
            settings = {"max_new_tokens": 1}
            body = {"text": "a secret", "sampling_params": settings, "no_logs": private}
            assert served.client.post("/generate", json=body).status_code == 200
    told, untold = map(journal._fields, seen)
    assert told["inputs"] == ["a secret"]
    assert "parameters" in told
    assert not {"inputs", "outputs", "parameters"} & set(untold)
    assert untold["prompts"] == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {}),
        ({"reasoning": {"effort": "low"}},
         {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}),
        ({"reasoning": {"effort": "none"}},
         {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        ({"reasoning": {"enabled": True}}, {"enable_thinking": True, "thinking": True}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False, "thinking": False}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "none"},
         {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
    ],
)  # fmt: skip
def test_reasoning_of_a_chat_reaches_the_template(
    fields: dict[str, Any], told: dict[str, Any]
) -> None:
    assert _variables(ChatRequest(messages=[], **fields)) == told


@pytest.mark.parametrize("reasoning", [{"effort": "lots"}, {"effort": 3}, {"enabled": "yes"}])
def test_a_wrong_reasoning_is_refused_by_name(http: httpx.Client, reasoning: Any) -> None:
    body = {**TABLE["/v1/chat/completions"][1], "reasoning": reasoning}
    error = is_error(http.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == f"reasoning.{next(iter(reasoning))}"
