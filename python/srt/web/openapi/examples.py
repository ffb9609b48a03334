"""Examples: valid bodies of each route, for /openapi.json."""

from __future__ import annotations

from typing import Any

Bodies = list[dict[str, Any]]

_QUESTION = "What is 17 + 25?"
_SAID = [{"role": "user", "content": _QUESTION}]
_GREEDY = {"temperature": 0, "max_tokens": 16}
_CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
_HINTS = {
    "protocol_version": "0.1",
    "message_id": "turn-17",
    "actions": [
        {"action_id": "a", "action_type": "kv.retain", "action_version": "1.0",
         "payload": {"ttl_seconds": 2}},
    ],
}  # fmt: skip
_WEATHER = {"name": "get_weather", "parameters": _CITY}
_TEXTS = ["the lamp is lit", "the rope is long"]
_SCORES: Bodies = [
    {"query": "Is it lit?", "items": _TEXTS, "label_token_ids": [10, 11], "apply_softmax": True},
    {"text_1": "a lamp", "text_2": _TEXTS},
]
_RANKING: Bodies = [{"query": "a lamp", "documents": _TEXTS, "top_n": 1, "return_documents": True}]
_TOKENIZE: Bodies = [{"prompt": _QUESTION}, {"text": _TEXTS, "return_token_strs": True}]
_DETOKENIZE: Bodies = [{"tokens": [20, 21, 22]}, {"tokens": [[20], [21, 22]]}]

_MODEL = "sglang-tiny:latest"
_BRIEF = {"temperature": 0, "num_predict": 16}

_LAMP: Bodies = [
    {
        "prompt": "Name: {{thing}}. A line: {{line}} Its mood: {{mood}}",
        "placeholders": [
            {"name": "thing", "in_out": False, "value": "lamp"},
            {
                "name": "line",
                "in_out": True,
                "sampling_params": {"max_new_tokens": 8, "stop": ["\n"]},
            },
            {
                "name": "mood",
                "in_out": True,
                "sampling_params": {"max_new_tokens": 4},
                "transforms": [{"op": "strip"}],
            },
        ],
    },
    {
        "graph": {
            "name": "capitals",
            "arguments": {"country": "France"},
            "streams": [
                {
                    "stream": 0,
                    "steps": [
                        {"number": 1, "op": "text", "text": "The capital of "},
                        {"number": 2, "op": "value", "of": {"argument": "country"}},
                        {"number": 3, "op": "text", "text": " is"},
                        {
                            "number": 4,
                            "op": "gen",
                            "name": "city",
                            "body": {"sampling_params": {"max_new_tokens": 4, "temperature": 0}},
                        },
                    ],
                }
            ],
        },
        "criteria": {"city": "latency"},
        "stream": True,
    },
]

_LOAD: Bodies = [{"lora_name": "poet", "lora_path": "poet"}]
_UNLOAD: Bodies = [{"lora_name": "poet"}]

EXAMPLES: dict[str, Bodies] = {
    "/workers": [{"url": "tcp://127.0.0.1:30100"}],
    "/workers/leave": [{"name": "1", "seconds": 60}],
    "/load_lora_adapter": _LOAD,
    "/unload_lora_adapter": _UNLOAD,
    "/v1/load_lora_adapter": _LOAD,
    "/v1/unload_lora_adapter": _UNLOAD,
    "/generate": [
        {"text": _QUESTION, "sampling_params": {"temperature": 0, "max_new_tokens": 8},
         "return_spans": True},
        {"text": _TEXTS, "sampling_params": {"max_new_tokens": 4}, "stream": True,
         "incremental_streaming_output": True},
        {"text": _QUESTION, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
         "token_ids_logprob": [7], "return_text_in_logprobs": True,
         "sampling_params": {"max_new_tokens": 2}},
        {"text": "It is", "output_ids": [7, 8], "sampling_params": {"max_new_tokens": 4}},
        {"text": "It is", "sampling_params": {"choices": [" red", " blue"],
                                              "choices_scoring": "whole"}},
        {"text": "It is", "options": [" red", " blue"], "return_text_in_logprobs": True},
        {"text": "A number:", "sampling_params": {"regex": " [0-9]{2}", "stop": "\n", "n": 2}},
    ],
    "/classify": [{"input": _QUESTION}, {"input": _TEXTS}],
    "/encode": [{"text": _QUESTION}, {"text": _TEXTS, "pooling": "mean"}],
    "/v1/completions": [
        {"prompt": _QUESTION, **_GREEDY, "echo": True, "logprobs": 2},
        {"prompt": _TEXTS, "n": 2, "max_tokens": 4, "stream": True,
         "stream_options": {"include_usage": True}},
    ],
    "/v1/chat/completions": [
        {"messages": _SAID, **_GREEDY, "logprobs": True, "top_logprobs": 2},
        {"messages": _SAID, **_GREEDY, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": _SAID, "tools": [{"type": "function", "function": _WEATHER}],
         "tool_choice": "required", "parallel_tool_calls": False},
        {"messages": _SAID, "response_format": {
            "type": "json_schema", "json_schema": {"name": "weather", "schema": _CITY}}},
        {"messages": _SAID, **_GREEDY, "kv_hints": _HINTS},
    ],
    "/v1/embeddings": [{"input": _QUESTION}, {"input": _TEXTS, "encoding_format": "base64"}],
    "/v1/responses": [
        {"input": _QUESTION, "temperature": 0, "max_output_tokens": 16},
        {"input": _QUESTION, "max_output_tokens": 16, "stream": True, "store": False},
        {"input": _QUESTION, "tools": [{"type": "function", **_WEATHER}],
         "tool_choice": "required", "parallel_tool_calls": False},
        {"input": _QUESTION, "max_output_tokens": 16, "kv_hints": _HINTS},
    ],
    "/v1/inferlets": [
        {"source": "async def main(ctx):\n    return await ctx.receive()\n", "name": "echo"},
        {"javascript": "async function main(ctx) { return await ctx.receive(); }"},
        {"wasm": "AGFzbQEAAAA="},
    ],
    "/v1/inferlets/{id}/runs": [{"arguments": ["one"], "turn_cpu": 0.5, "stream": True}],
    "/v1/runs/{id}/messages": [{"text": "hello"}],
    "/v1/batches": [{"input_file_id": "file-0", "endpoint": "/v1/chat/completions",
                     "completion_window": "24h", "metadata": {"of": "the lamp"}}],
    "/v1/responses/input_tokens": [{"input": _QUESTION}],
    "/v1/messages": [
        {"messages": _SAID, **_GREEDY, "system": "Be brief."},
        {"messages": _SAID, **_GREEDY, "stream": True},
        {"messages": _SAID, "max_tokens": 64, "tool_choice": {"type": "any"},
         "tools": [{"name": "get_weather", "input_schema": _CITY}]},
        {"messages": _SAID, **_GREEDY, "kv_hints": _HINTS},
    ],
    "/v1/messages/count_tokens": [{"messages": _SAID}],
    "/api/chat": [
        {"model": _MODEL, "messages": _SAID, "stream": False, "options": _BRIEF},
        {"model": _MODEL, "messages": _SAID, "stream": True, "options": _BRIEF},
        {"model": _MODEL, "messages": _SAID, "stream": False, "format": _CITY,
         "tools": None, "options": {"temperature": 0}},
    ],
    "/api/generate": [
        {"model": _MODEL, "prompt": _QUESTION, "stream": False, "options": _BRIEF},
        {"model": _MODEL, "prompt": _QUESTION, "raw": True, "stream": True, "options": _BRIEF},
    ],
    "/api/embed": [{"model": _MODEL, "input": _TEXTS}],
    "/api/embeddings": [{"model": _MODEL, "prompt": _QUESTION}],
    "/api/show": [{"model": _MODEL}],
    "/api/pull": [{"model": _MODEL, "stream": False}],
    "/v1/score": _SCORES,
    "/score": _SCORES,
    "/v1/rerank": _RANKING,
    "/v2/rerank": _RANKING,
    "/rerank": _RANKING,
    "/tokenize": [*_TOKENIZE, {"messages": _SAID}],
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    "/apply-template": [{"messages": _SAID}],
    "/abort_request": [{"rid": "mine"}, {"abort_all": True}],
    "/open_session": [{"capacity_of_str_len": 1024, "timeout": 60}],
    "/close_session": [{"session_id": "mine"}],
    "/v1/session": [{}],
    "/v1/submit": _LAMP,
    "/v1/get": [{"session_id": "mine", "semantic_var_id": "a", "criteria": "latency"}],
    "/v1/set": [{"session_id": "mine", "semantic_var_id": "a", "value": "a lamp"}],
    "/v1/cancel": [{"session_id": "mine", "semantic_var_id": "a"}],
    "/pause_generation": [{"mode": "in_place"}],
}  # fmt: skip
