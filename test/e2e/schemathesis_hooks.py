"""Hooks of Schemathesis, which loads this file: short texts, and refusals that are no findings.

Requests that fit the OpenAPI document are refused for reasons that no schema can say. Every other
refusal of a request that fits is a finding.
"""

from __future__ import annotations

import re
from typing import Any

import schemathesis

# Fields in a language of their own: the document gives their types and not their syntax.
LANGUAGES = {
    "regex", "json_schema", "ebnf", "structural_tag", "choices", "whitespace_pattern",
    "guided_regex", "guided_json", "guided_grammar", "guided_choice", "guided_whitespace_pattern",
    "structured_outputs", "response_format", "stop_regex", "chat_template_kwargs",
    "tools", "functions", "text", "format", "options",
}  # fmt: skip
# Items of a conversation: which may follow which, and refer to which.
CONVERSATIONS = {"messages", "input", "previous_response_id", "session_params"}
# Programs: what a graph's steps and variables refer to, and what was opened before.
PROGRAMS = {"graph", "session_id", "semantic_var_id", "submission_id", "criteria"}
# Facts of the served model: its adapters, labels, vectors, draft model, vocabulary.
MODEL = {"model", "lora_name", "lora_path", "speculation", "dimensions"}
BETWEEN_FIELDS = re.compile(
    r"""ids\ are\ 0\ to|holds\ the\ token|maximum\ context\ length
    |entries\ for\ \d+\ prompts|give\ one,\ or\ as\ many
    |Only\ a\ response\ created
    |\ needs\ |\ is\ given\ with(out)?\ |exclude\ one\ another|names\ of\ one\ thing
    |must\ be\ at\ least\ n,|^output_ids\ are\ those\ of\ one\ text|^kv_hints\.protocol_version
    |^tool_choice|^return_progress\ is\ true|has\ no\ token\ that\ begins|is\ open\ already
    |Leave\ one\ of\ them\ out""",
    re.VERBOSE,
)
NO_INTEGER = re.compile("got `float`|list of token ids|mixes texts, token ids")
BEYOND = LANGUAGES | CONVERSATIONS | PROGRAMS | MODEL
FIRST_WORD = re.compile(r"\w*")


# Coverage leaves a field out, or gives it its default, beside those that vary: thousands of texts
# of 128 tokens, or up to the end of the context, are minutes of the engine.
LENGTHS = ("max_new_tokens", "max_tokens")
DEFAULT, SHORT = 128, 2
OPTIONAL_LENGTHS = {
    "/v1/completions": ("max_tokens",),
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Ask for a short text where nothing else is said."""
    if not isinstance(case.body, dict):
        return
    names = OPTIONAL_LENGTHS.get(case.path, ())
    if names and not any(name in case.body for name in names):
        case.body[names[0]] = SHORT
    if case.path != "/generate":
        return
    asked = case.body.get("sampling_params")
    for params in asked if isinstance(asked, list) else [asked]:
        if not isinstance(params, dict):
            continue
        if not any(name in params for name in LENGTHS):
            params[LENGTHS[0]] = SHORT
        for name in LENGTHS:
            if params.get(name) == DEFAULT:
                params[name] = SHORT


def fractional(value: Any) -> bool:
    """Whether a whole number with a decimal point is in it."""
    if isinstance(value, dict | list):
        return any(map(fractional, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer()


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Whether a failure is one."""
    if type(failure).__name__ != "RejectedPositiveData":
        return True
    error = response.json()["error"]
    error = {"message": error} if isinstance(error, str) else error  # Ollama's form
    if fractional(case.body) and NO_INTEGER.search(error["message"]):
        return False  # to JSON Schema 1.0 is an integer, to the server it is none
    first = FIRST_WORD.match(error["message"])
    assert first is not None
    if error.get("param", first[0]) in BEYOND:
        return False  # errors of /v1/messages and /api have no param, and begin with it
    return BETWEEN_FIELDS.search(error["message"]) is None
