"""Prompts: one or several, as text or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.core.ints import Ints
from sglang.srt.requests.completion.completion_request import verify_prompt
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.engine_runtime import EngineRuntime


def prompts_of(value: Any, field: str) -> list[Any]:
    """Return a list with one entry for each prompt; all are texts, or all are lists of token ids.
    Raises RequestError, naming ``field``."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError(f"{field} must be text, token ids, or a list of either.", field)
    if all(isinstance(one, str) for one in value) or all(isinstance(one, list) for one in value):
        return value
    if all(type(one) is int for one in value):
        return [value]
    raise RequestError(
        f"{field} mixes texts, token ids and lists of them; give texts, or lists of ids.", field
    )


async def read_prompt(
    runtime: EngineRuntime, value: str | list[int], field: str, add_special_tokens: bool = True
) -> Ints:
    """Return the verified token ids of one prompt. Raises RequestError, naming ``field``."""
    try:
        if isinstance(value, str):
            ids = await runtime.completion.encode_prompt(value, add_special_tokens)
        else:
            ids = await runtime.prompt(value, field)
        verify_prompt(ids, runtime.info)
    except RequestError as error:
        message = error.message if field in ("prompt", error.param) else f"{field}: {error.message}"
        raise RequestError(message, field.partition("[")[0], error.code) from error
    return ids


def places(field: str, values: Sequence[Any]) -> list[str]:
    """Return the names of a field's values for error messages, such as ``input[0]``."""
    return [field] if len(values) == 1 else [f"{field}[{i}]" for i in range(len(values))]
