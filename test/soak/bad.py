"""Bad input: requests that are refused, with the status that they get."""

from __future__ import annotations

from typing import Any

from helpers.apis import user

_ASK: dict[str, Any] = {"messages": user("a"), "max_tokens": 4}
_BIG = 1 << 18  # bytes of the largest body

BAD: list[tuple[int, str, Any]] = [
    (400, "/generate", b'{"text": "a"'),
    (400, "/generate", b'{"text": "\xff"}'),
    (400, "/v1/messages", b'{"model": "a", "model": "b"}'),
    (400, "/v1/chat/completions", b'{"model": NaN}'),
    (400, "/v1/responses", b"[" * 5000),
    (413, "/generate", b" " * (_BIG + 1)),
    (404, "/v1/responses/none/cancel", None),
    (405, "/health", {}),
    (400, "/generate", {}),
    (400, "/generate", {"text": ""}),
    (400, "/generate", {"input_ids": [1, 10**6]}),
    (400, "/generate", {"input_ids": [5] * 9000}),
    (400, "/v1/completions", {"prompt": "z q " * 9000}),
    (400, "/generate", {"text": "a", "sampling_params": {"n": 10**9}}),
    (400, "/generate", {"text": "a", "sampling_params": {"max_new_tokens": -1}}),
    (400, "/generate", {"text": "a", "sampling_params": {"temprature": 1}}),
    (400, "/generate", {"text": "a", "sampling_params": {"stop": ["x"] * 9000}}),
    (400, "/generate", {"text": "a", "sampling_params": {"regex": "(a"}}),
    (400, "/generate", {"text": "a", "sampling_params": {"regex": "(((.{1,30}){1,30}){1,30})"}}),
    (400, "/generate", {"text": "a", "sampling_params": {"ebnf": "root ::= root"}}),
    (400, "/generate", {"text": "a", "sampling_params": {"json_schema": {"type": "strng"}}}),
    (400, "/generate", {"text": "a", "image_data": "http://169.254.169.254/"}),
    (400, "/generate", {"parts": ["a", [["b"]]]}),
    (400, "/v1/completions", {"prompt": "a", "best_of": 1000}),
    (400, "/v1/completions", {"prompt": "a", "suffix": "b"}),
    (400, "/v1/chat/completions", {"messages": []}),
    (400, "/v1/chat/completions", {**_ASK, "temperature": 1e300}),
    (400, "/v1/chat/completions", {**_ASK, "stream": True, "top_p": 0}),
    (403, "/v1/chat/completions", {**_ASK, "chat_template": "{{ 1 }}"}),
    (400, "/v1/chat/completions", {**_ASK, "tools": [3]}),
    (400, "/v1/messages", {"messages": user("a")}),
    (400, "/v1/messages", {**_ASK, "tools": [{"name": "a b", "input_schema": {}}]}),
    (400, "/v1/responses", {"input": "a", "previous_response_id": "resp_none"}),
    (400, "/v1/responses", {"input": "a", "n": 2}),
    (400, "/v1/embeddings", {"input": ""}),
    (400, "/v1/score", {"query": "a", "items": []}),
    (400, "/v1/rerank", {"query": "", "documents": ["a"]}),
    (400, "/detokenize", {"tokens": [-1]}),
]
