"""Options of ``/generate``: texts that are scored after a prompt, in place of a generation.

A tokenizer may merge the end of the prompt with the beginning of an option. So each option is
tokenized together with the prompt. All options are scored from the same index: the first token at
which the tokens of any option differ from the prompt's own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from sglang.ir.constraint import MAX_CHOICES
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Ints, common_prefix, ints
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    namespace_of,
    verify_prompt,
)
from sglang.srt.requests.completion.encoder import SMALL
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.token_tree import ScoredRows
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateCall, GenerateRequest
from sglang.srt.runtime.generated import Triple

MOST_SCORED = 1 << 20  # most tokens of all options of a request
# Fields that have no meaning if nothing is generated.
_WITHOUT = (
    "parts", "output_ids", "image_data", "video_data", "sampling_params", "stream",
    "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob",
    "masked_logprobs", "return_hidden_states", "session_params", "park", "resume", "kv_hints",
)  # fmt: skip

OptionLogprobs = list[list[Triple]]


async def read_options(
    runtime: EngineRuntime, body: GenerateRequest, caller: Caller
) -> GenerateCall:
    """Return a request with ``options`` as a call: its prompt, and the rows of tokens to score.
    Raises RequestError."""
    received = time.monotonic() if body.return_spans else None
    request = await _read(runtime, body)
    with_text = bool(body.return_text_in_logprobs)
    return GenerateCall(runtime, caller, [request], True, with_text, received, [False])


async def _read(runtime: EngineRuntime, body: GenerateRequest) -> CompletionRequest:
    for name in _WITHOUT:
        if getattr(body, name):
            raise RequestError(
                f"{name} is given with options, which are scored and not generated; leave it out.",
                name,
                "unsupported",
            )
    options = body.options or []
    if not 1 <= len(options) <= MAX_CHOICES:
        raise RequestError(
            f"options has {len(options)} entries; give 1 to {MAX_CHOICES}.", "options"
        )
    if isinstance(body.text, str) and all(isinstance(option, str) for option in options):
        own, rows = await _tokenized(runtime, body.text, [str(option) for option in options])
    elif all(isinstance(option, list) for option in options):
        own = await _own(runtime, body)
        rows = [own + await runtime.prompt(option, "options") for option in options]
    else:
        raise RequestError("options must be texts after a text, or lists of token ids.", "options")
    behind = min(common_prefix(own, row) for row in rows)
    for i, row in enumerate(rows):  # the ids common to all options are verified only once
        verify_prompt(row, runtime.info, behind if i else 0)
    scored = ScoredRows([row[behind:].tolist() for row in rows], behind)
    _verify_scored(sum(map(len, scored.rows)))
    return CompletionRequest(
        own or rows[0],
        SamplingParams(max_new_tokens=0),
        rid=_one(body, "rid") or uuid.uuid4().hex,
        priority=body.priority or 0,
        namespace=namespace_of(_one(body, "cache_salt"), _one(body, "extra_key")),
        adapter=_adapter(runtime, body),
        scored=scored,
    )


def option_logprobs(
    call: GenerateCall, request: CompletionRequest, output: Output
) -> OptionLogprobs:
    """Return the log-probability entries of each option's tokens. The first token after an empty
    prompt has no value."""
    assert request.scored is not None
    texts, decode = dict[int, str | None](), call.runtime.tokenizer.decode
    found = OptionLogprobs()
    for row, values in zip(request.scored.rows, output.row_logprobs):
        entries = list[Triple]()
        for at, (token, value) in enumerate(zip(row, values)):
            if token not in texts:
                texts[token] = decode([token]) if call.with_text else None
            known = request.scored.behind or at
            entries.append((value if known else None, token, texts[token]))
        found.append(entries)
    return found


async def _own(runtime: EngineRuntime, body: GenerateRequest) -> Ints:
    """Return the token ids of the prompt; an empty prompt has none."""
    if body.text:
        return await runtime.prompt(body.text, "text")
    return await runtime.prompt(body.input_ids or [], "input_ids")


async def _tokenized(
    runtime: EngineRuntime, text: str, options: Sequence[str]
) -> tuple[Ints, list[Ints]]:
    """Return the token ids of the prompt, and of the prompt with each option. The part of the
    prompt that options cannot affect is tokenized once."""
    completion, tokenizer = runtime.completion, runtime.tokenizer
    completion.verify_chars(len(text) + max(map(len, options)))
    cut = tokenizer.last_cut(text)
    head = await completion.encoder.encode(text[:cut], add_special_tokens=False)
    tail = text[cut:]
    texts = [tail + option for option in options]
    if text:
        texts.insert(0, tail)
    rows = list[Ints]()
    each = max(map(len, texts)) or 1
    for start in range(0, len(texts), count := max(SMALL // (4 * each), 1)):
        part = texts[start : start + count]
        found = await completion.encoder.encode_pieces(part)
        rows += [tokenizer.framed(head + ids) for ids in found]
    return rows.pop(0) if text else ints(), rows


def _one(body: GenerateRequest, name: str) -> Any:
    """Return the value of a field that must not be a list here. Raises RequestError."""
    value = getattr(body, name)
    if isinstance(value, list):
        raise RequestError(f"{name} is a list; with options there is one prompt.", name)
    return value


def _adapter(runtime: EngineRuntime, body: GenerateRequest) -> str:
    path: str | None = _one(body, "lora_path")
    return runtime.adapters.of(lora_path=path) if path else ""


def _verify_scored(count: int) -> None:
    if count > MOST_SCORED:
        raise RequestError(
            f"the options have {count} tokens; at most {MOST_SCORED} are scored at once. Give "
            "fewer options.",
            "options",
        )
