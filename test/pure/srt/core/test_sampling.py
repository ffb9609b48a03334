"""SamplingParams: each limit refuses with the parameter's name, its value and the limit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sglang.ir.params import ALIASES, NAMES, GenParams
from sglang.ir.sampling import (
    CHOICE,
    LOGITS,
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_PATTERNS,
    MAX_STOP_CHARS,
    MAX_STOP_TOTAL,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MIN_REPETITION,
    PARAMETERS,
    SEED_LIMIT,
    SamplingParams,
    names_of,
)
from sglang.srt.requests.completion.whole_choices import verify_whole
from sglang.srt.runtime.completion_fields import CompletionFields
from sglang.srt.web.openapi.limits import fields_of, sampling_schema

from tools import parameters

VOCAB = 100
RUNTIME_ONLY = ("no_stop_trim", "skip_special_tokens")  # not parameters of the language


def test_the_defaults_are_valid() -> None:
    SamplingParams().verify(VOCAB)


AT_THE_LIMIT: list[dict[str, Any]] = [
    {"max_new_tokens": 0},
    {"max_new_tokens": 4, "min_new_tokens": 4},
    {"n": MAX_N},
    {"stop": ("x",) * MAX_STOPS},
    {"stop": ("x" * MAX_STOP_CHARS,) * (MAX_STOP_TOTAL // MAX_STOP_CHARS)},
    {"stop_token_ids": tuple(range(VOCAB))},
    {"stop_regex": ("a+",) * MAX_PATTERNS},
    {"temperature": 0.0},
    {"temperature": MAX_TEMPERATURE},
    {"repetition_penalty": MIN_REPETITION},
    {"top_p": 1.0},
    {"top_k": 1},
    {"top_k": -1},
    {"min_p": 0.0},
    {"min_p": 1.0},
    {"frequency_penalty": -2.0, "presence_penalty": 2.0, "repetition_penalty": 2.0},
    {"logit_bias": {0: -100.0, VOCAB - 1: 100.0}},
    {"seed": SEED_LIMIT - 1},
    {"seed": -SEED_LIMIT},
]


@pytest.mark.parametrize("values", AT_THE_LIMIT, ids=lambda v: "-".join(v))
def test_a_value_at_its_limit_is_accepted(values: dict[str, Any]) -> None:
    SamplingParams(**values).verify(VOCAB)


PAST_THE_LIMIT: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be a whole number of at least 0"),
    ({"min_new_tokens": -1}, "min_new_tokens is -1"),
    ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens is 5; .* max_new_tokens .4."),
    ({"n": 0}, f"n is 0; it must be a whole number from 1 to {MAX_N}"),
    ({"n": 10**9}, f"n is 1000000000; it must be .* from 1 to {MAX_N}"),
    ({"stop": ("a",) * 10**5}, f"stop has 100000 entries; at most {MAX_STOPS}"),
    ({"stop": ("a", "")}, "stop contains an empty string"),
    ({"stop": ("x" * 2000,)}, f"stop has an entry of 2000 characters; at most {MAX_STOP_CHARS}"),
    ({"stop_regex": ("",)}, "stop_regex contains an empty string"),
    ({"stop": ("x" * 1000,) * 5}, "stop has 5000 characters in all; at most 4096"),
    ({"stop_regex": ("a",) * 17}, "stop_regex has 17 entries; at most 16"),
    ({"stop_token_ids": (0,) * 10**5}, f"stop_token_ids has 100000 entries; at most {MAX_STOPS}"),
    ({"stop_token_ids": (VOCAB,)}, "stop_token_ids names token 100; the vocabulary ends at 99"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids names token -1"),
    ({"temperature": math.nan}, "temperature is nan; it must be a number from 0 to 1000000"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": -0.1}, "temperature is -0.1; it must be a number from 0 to 1000000"),
    ({"temperature": 1e39}, r"temperature is 1e\+39"),
    ({"top_p": 0.0}, "top_p is 0.0; it must be a number above 0 and at most 1"),
    ({"top_p": 1.01}, "top_p is 1.01"),
    ({"top_p": math.nan}, "top_p is nan"),
    ({"top_k": 0}, "top_k is 0; it must be -1"),
    ({"top_k": -2}, "top_k is -2"),
    ({"min_p": -0.1}, "min_p is -0.1"),
    ({"min_p": 1.1}, "min_p is 1.1"),
    ({"frequency_penalty": 2.1}, "frequency_penalty is 2.1; it must be a number from -2 to 2"),
    ({"presence_penalty": -2.1}, "presence_penalty is -2.1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be a number from 0.001 to 2"),
    ({"repetition_penalty": 1e-45}, "repetition_penalty is 1e-45"),
    ({"repetition_penalty": 2.1}, "repetition_penalty is 2.1"),
    ({"logit_bias": {VOCAB: 1.0}}, "logit_bias names token 100; the vocabulary ends at 99"),
    ({"logit_bias": {-1: 1.0}}, "logit_bias names token -1"),
    ({"logit_bias": {1: 101.0}}, "logit_bias of token 1 is 101.0; it must be from -100 to 100"),
    ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 is nan"),
    ({"logit_bias": dict.fromkeys(range(10**5), 1.0)},
     f"logit_bias has 100000 entries; at most {MAX_LOGIT_BIAS}"),
    ({"seed": SEED_LIMIT}, "seed is 9223372036854775808; it must be a signed 64-bit whole number"),
    ({"seed": -SEED_LIMIT - 1}, "seed is -9223372036854775809"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "message"), PAST_THE_LIMIT, ids=[str(i) for i in range(len(PAST_THE_LIMIT))]
)
def test_a_value_past_its_limit_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**values).verify(VOCAB)


def test_greedy() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(top_k=1).greedy
    assert not SamplingParams(temperature=1e-6).greedy


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields)


def test_penalised() -> None:
    assert not SamplingParams().penalised
    for name in ("frequency_penalty", "presence_penalty", "repetition_penalty"):
        assert sampling(**{name: 1.1}).penalised


def test_a_copy_with_changes_keeps_the_rest() -> None:
    one = SamplingParams(stop=("x",), seed=5)
    two = replace(one, max_new_tokens=1)
    assert (two.stop, two.seed, two.max_new_tokens) == (("x",), 5, 1)
    assert one.max_new_tokens == 128


def test_the_page_has_the_declared_parameters() -> None:
    page = parameters.PAGE.read_text(encoding="utf-8")
    assert parameters.inserted(page) == page, "run: python -m tools.parameters --write"


def documented() -> dict[str, str]:
    """Defaults in the table of docs/language.md, by parameter of ``gen``."""
    page = (parameters.PAGE.parent / "language.md").read_text(encoding="utf-8")
    table = page[page.index("| parameter | default | |") :].split("\n\n")[0]
    found: dict[str, str] = {}
    for line in table.splitlines()[2:]:
        first, second = line.split("|")[1:3]
        names, defaults = re.findall(r"`(\w+)`", first), second.strip().split(", ")
        if len(defaults) != len(names):
            defaults = [defaults[0]] * len(names)
        found |= {ALIASES.get(name, name): text for name, text in zip(names, defaults)}
    return found


def test_the_guide_of_gen_has_the_declared_defaults() -> None:
    shown = documented()
    others = {
        "choices",
        "choices_method",
        "tools",
        "tool_choice",
        "max_tool_rounds",
        "tool_timeout",
    }
    assert shown.keys() == {*NAMES, *others}
    for name in PARAMETERS.keys() & set(NAMES):
        default = PARAMETERS[name].default
        text = f"{default:g}" if type(default) is float else str(default)
        assert shown[name].strip('"') == ("none" if default in ((), {}, None) else text), name


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_way_in_takes_each_declared_parameter(name: str) -> None:
    """A parameter is declared once: the bodies of HTTP, its document and the language follow."""
    spelled = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}.get(name, name)
    assert spelled in CompletionFields.__struct_fields__
    _, components = msgspec.json.schema_components([CompletionFields])
    told = fields_of(CompletionFields, components["CompletionFields"]["properties"])[spelled]
    assert PARAMETERS[name].schema() in told["anyOf"]
    assert PARAMETERS[name].description == told["description"]
    assert PARAMETERS[name].description in str(sampling_schema()["properties"][name])
    assert name in GenParams.__dataclass_fields__ or name in RUNTIME_ONLY


def test_roles_group_the_parameters() -> None:
    assert names_of(CHOICE) == ["temperature", "top_p", "top_k", "min_p", "seed"]
    assert names_of(LOGITS) == [
        "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
    ]  # fmt: skip
    one = {"frequency_penalty": 1.0, "min_p": 0.5, "logit_bias": {1: 2.0}}
    for name in (*names_of(CHOICE), *names_of(LOGITS)):
        allowed = name in ("temperature", "seed")
        params = sampling(**{name: one.get(name, 2 if name != "top_p" else 0.5)})
        if allowed:
            verify_whole(params)
            continue
        with pytest.raises(ValueError, match=f"^{name} works on tokens"):
            verify_whole(params)
    verify_whole(SamplingParams(temperature=0.0, top_k=5))
