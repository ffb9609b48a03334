"""Upstream SGLang's public signatures against ours: names, order, defaults, and each difference.

The table holds facts of upstream's published releases (0.4 to 0.5). A difference that is not in
``DIFFERENCES`` fails, and so does an entry of it that is no difference any more.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest
import sglang as sgl
import sglang.utils

SAMPLING = """stop={0}, stop_token_ids={0}, stop_regex={0}, temperature={1}, top_p={2}, top_k={3},
    min_p={4}, frequency_penalty={4}, presence_penalty={4}, ignore_eos={5}, return_logprob=None,
    logprob_start_len=None, top_logprobs_num=None, return_text_in_logprobs=None"""
INHERITED = SAMPLING.format(*[None] * 6)
RUN = "max_new_tokens=128, n=1, " + SAMPLING.format(None, 1.0, 1.0, -1, 0.0, False)
GENERATE = """self, prompt=None, sampling_params=None, input_ids=None, image_data=None,
    audio_data=None, video_data=None, return_logprob=False, logprob_start_len=None,
    top_logprobs_num=None, token_ids_logprob=None, lora_path=None, custom_logit_processor=None,
    return_hidden_states=False, stream=False, rid=None, session_params=None, priority=None"""
ENCODE = """self, prompt, image_data=None, audio_data=None, video_data=None, dimensions=None,
    lora_path=None, rid=None"""
SCORED = """*, choices, normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs,
    unconditional_token_logprobs=None"""

UPSTREAM = {
    "function": "func=None, num_api_spec_tokens=None",
    "gen": f"""name=None, max_tokens=None, min_tokens=None, n=None, {INHERITED}, dtype=None,
        choices=None, choices_method=None, regex=None, json_schema=None""",
    "gen_int": f"name=None, max_tokens=None, n=None, {INHERITED}",
    "gen_string": f"name=None, max_tokens=None, n=None, {INHERITED}",
    "select": """name=None, choices=None, temperature=0.0,
        choices_method=sgl.token_length_normalized""",
    "image": "expr",
    "video": "path, num_frames",
    "separate_reasoning": "expr=None, model_type=None",
    "system": "expr=None",
    "user": "expr=None",
    "assistant": "expr=None",
    "system_begin": "",
    "system_end": "",
    "user_begin": "",
    "user_end": "",
    "assistant_begin": "",
    "assistant_end": "",
    "set_default_backend": "backend",
    "flush_cache": "backend=None, empty_cache=True",
    "get_server_info": "backend=None",
    "SglFunction": "func, num_api_spec_tokens=None, bind_arguments=None",
    "SglFunction.run": f"self, *args, {RUN}, stream=False, backend=None, use_thread=True, **kwargs",
    "SglFunction.run_batch": f"""self, batch_kwargs, *, {RUN}, backend=None, num_threads="auto",
        progress_bar=False, generator_style=False""",
    "SglFunction.trace": "self, *, backend=None, **kwargs",
    "SglFunction.bind": "self, **kwargs",
    "SglFunction.cache": "self, backend=None",
    "SglFunction.compile": "self, *, backend=None",
    "SglFunction.__call__": "self, *args, **kwargs",
    "ProgramState.get_var": "self, name",
    "ProgramState.set_var": "self, name, value",
    "ProgramState.get_meta_info": "self, name",
    "ProgramState.__getitem__": "self, name",
    "ProgramState.__setitem__": "self, name, value",
    "ProgramState.__contains__": "self, name",
    "ProgramState.__iadd__": "self, other",
    "ProgramState.text": "self",
    "ProgramState.messages": "self",
    "ProgramState.sync": "self",
    "ProgramState.error": "self",
    "ProgramState.text_iter": "self, var_name=None",
    "ProgramState.text_async_iter": "self, var_name=None, return_meta_data=False",
    "ProgramState.fork": "self, size=1, position_ids_offset=None",
    "ProgramState.copy": "self, position_ids_offset=None",
    "ProgramState.var_scope": "self, name",
    "ProgramState.system": "self, expr=None",
    "ProgramState.user": "self, expr=None",
    "ProgramState.assistant": "self, expr=None",
    "ForkGroup.join": 'self, mode="gather_variable"',
    "ForkGroup.__getitem__": "self, i",
    "ForkGroup.__setitem__": "self, i, value",
    "ForkGroup.__iadd__": "self, other",
    "RuntimeEndpoint": "base_url, api_key=None, verify=None, chat_template_name=None",
    "RuntimeEndpoint.cache_prefix": "self, prefix_str",
    "RuntimeEndpoint.flush_cache": "self",
    "RuntimeEndpoint.get_server_info": "self",
    "Runtime": 'log_level="error", launch_timeout=300.0, *args, **kwargs',
    "Runtime.generate": """self, prompt, sampling_params=None, return_logprob=False,
        logprob_start_len=None, top_logprobs_num=None, lora_path=None""",
    "Runtime.async_generate": "self, prompt, sampling_params=None",
    "Runtime.encode": "self, prompt",
    "Runtime.cache_prefix": "self, prefix",
    "Runtime.get_tokenizer": "self",
    "Runtime.shutdown": "self",
    "Engine": "**kwargs",
    "Engine.generate": GENERATE,
    "Engine.async_generate": GENERATE,
    "Engine.encode": ENCODE,
    "Engine.async_encode": ENCODE,
    "Engine.flush_cache": "self",
    "Engine.get_server_info": "self",
    "Engine.load_lora_adapter": "self, lora_name, lora_path, pinned=False",
    "Engine.unload_lora_adapter": "self, lora_name",
    "Engine.shutdown": "self",
    "token_length_normalized.__call__": SCORED,
    "greedy_token_selection.__call__": SCORED,
    "unconditional_likelihood_normalized.__call__": SCORED,
    "utils.terminate_process": "process",
    "OpenAI": """model_name, is_chat_model=None, chat_template=None, is_azure=False, *args,
        **kwargs""",
    "Anthropic": "model_name, *args, **kwargs",
    "LiteLLM": """model_name, chat_template=None, api_key=None, organization=None, base_url=None,
        timeout=600, max_retries=1, default_headers=None""",
}  # fmt: skip

BY_NAME = "their position moved between upstream's releases: by name only"
UNSET = "None: not given, which a request takes as upstream's default"
FIELD = "one of **fields, which are checked as fields of the request"
OF_GENERATE = {
    "order": "behind image_data by name: upstream's order moved between releases",
    "return_logprob": UNSET, "audio_data": FIELD, "video_data": FIELD, "token_ids_logprob": FIELD,
    "lora_path": FIELD, "custom_logit_processor": FIELD, "return_hidden_states": FIELD,
    "rid": FIELD, "session_params": FIELD, "priority": FIELD,
}  # fmt: skip
OF_ENCODE = {
    "prompt": "has a default: input_ids may be given in its place",
    "image_data": FIELD, "audio_data": FIELD, "video_data": FIELD, "dimensions": FIELD,
    "lora_path": FIELD, "rid": FIELD,
}  # fmt: skip
IN_SCORES = (
    "choices", "normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs",
    "unconditional_token_logprobs", "scores",
)  # fmt: skip
OF_METHOD = dict.fromkeys(IN_SCORES, "a method is given one object, Scores, that holds them")
# Differences of each signature: the parameter (or "order": positions of those that stay) to the
# reason.
DIFFERENCES: dict[str, dict[str, str]] = {
    "gen": {
        "order": BY_NAME,
        "choices_method": "the method that upstream puts in place of None, shown in the signature",
    },
    "gen_int": {"order": BY_NAME},
    "gen_string": {"order": BY_NAME},
    "video": {"num_frames": "has a default, 8: upstream has none"},
    "separate_reasoning": {
        "expr": "required: there is no reasoning of nothing",
        "model_type": "required: upstream fails later without it",
    },
    "SglFunction": {"bind_arguments": "is called bound; made by bind(), as in upstream"},
    "ForkGroup.__getitem__": {"i": "is called index; the operator gives it by position"},
    "ForkGroup.__setitem__": {"i": "is called index; the operator gives it by position"},
    "Runtime": {
        "log_level": "a setting as others, by name; the server's own default",
        "order": "settings are given by name",
        "launch_timeout": "600 s: a first start may compile kernels or read a slow disk",
        "args": "settings are given by name",
    },
    "Runtime.generate": {
        "prompt": "has a default: input_ids may be given in its place",
        "return_logprob": FIELD, "logprob_start_len": FIELD, "top_logprobs_num": FIELD,
        "lora_path": FIELD,
    },
    "Runtime.async_generate": {"prompt": "has a default: input_ids may be given in its place"},
    "Engine.generate": OF_GENERATE,
    "Engine.async_generate": OF_GENERATE,
    "Engine.encode": OF_ENCODE,
    "Engine.async_encode": OF_ENCODE,
    "token_length_normalized.__call__": OF_METHOD,
    "greedy_token_selection.__call__": OF_METHOD,
    "unconditional_likelihood_normalized.__call__": OF_METHOD,
    "OpenAI": {"args": "the official client takes keywords only"},
    "Anthropic": {"args": "the official client takes keywords only"},
    "LiteLLM": {
        "order": "behind api_key by name, as of every other API backend",
        "organization": "one of **kwargs, passed on",
        "base_url": "one of **kwargs, passed on",
        "default_headers": "one of **kwargs, passed on",
        "max_retries": "3, as of every other API backend",
    },
}  # fmt: skip

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def differences(upstream: inspect.Signature, ours: inspect.Signature) -> Iterator[str]:
    """Names of upstream's parameters that ours lacks or has with another default, and "order"."""
    known, places = ours.parameters, list(ours.parameters)
    for index, (name, parameter) in enumerate(upstream.parameters.items()):
        if parameter.kind in VARIADIC:
            if parameter.kind not in {p.kind for p in known.values()}:
                yield name
            continue
        if name not in known:
            yield name
            continue
        mine = known[name]
        if mine.default != parameter.default:
            yield name
        if parameter.kind in POSITIONAL and (
            mine.kind not in POSITIONAL or places.index(name) != index
        ):
            yield "order"
    for name, mine in known.items():
        required = mine.default is mine.empty and mine.kind not in VARIADIC
        if required and name not in upstream.parameters:
            yield name


def signature(parameters: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {' '.join(parameters.split())}: None"))


@pytest.mark.parametrize("path", UPSTREAM)
def test_the_signature_is_upstreams_or_says_why_not(path: str) -> None:
    found = set(differences(signature(UPSTREAM[path]), inspect.signature(attrgetter(path)(sgl))))
    # A name of ours in place of upstream's is one difference, under upstream's name.
    instead = {"bound", "index"} & found
    assert found - instead == set(DIFFERENCES.get(path, ()))


def test_every_difference_is_of_a_signature() -> None:
    assert DIFFERENCES.keys() <= UPSTREAM.keys()


@pytest.mark.parametrize(
    ("upstream", "ours", "found"),
    [
        ("a, b=1", "a, b=1, c=2", []),
        ("a, b=1", "b=1, a=0", ["a", "order", "order"]),
        ("a", "a, c", ["c"]),
        ("*, a=1", "a=2", ["a"]),
        ("*args, **kwargs", "**kw", ["args"]),
        ("var_name=None", "var=None", ["var_name"]),
    ],
)
def test_the_comparison_sees(upstream: str, ours: str, found: list[str]) -> None:
    assert list(differences(signature(upstream), signature(ours))) == found


@sgl.function
def chat(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1) + sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2) + sgl.assistant(sgl.gen("answer_2", max_tokens=256))


def run() -> sgl.ProgramState:
    arguments: dict[str, Any] = {
        "question_1": "What is the capital of France?",
        "question_2": "Two sights?",
    }
    backend = sgl.Mock(["It is Paris.", "The tower and the museum."])
    return chat.run(**arguments, temperature=0.1, stream=True, backend=backend)


def test_streaming_as_upstreams_users_write_it() -> None:
    assert "".join(run().text_iter(var_name="answer_1")) == "It is Paris."
    assert "".join(run().text_iter()).endswith("The tower and the museum.<|im_end|>\n")

    async def pieces(**options: Any) -> list[Any]:
        return [piece async for piece in run().text_async_iter("answer_2", **options)]

    assert "".join(asyncio.run(pieces())) == "The tower and the museum."
    with_meta = asyncio.run(pieces(return_meta_data=True))
    assert "".join(piece for piece, _ in with_meta) == "The tower and the museum."
    assert with_meta[-1][1]["finish_reason"]


@pytest.mark.parametrize("name", ["var_name", "var"])
def test_a_variable_goes_by_both_names(name: str) -> None:
    state = run()
    assert "".join(state.text_iter(**{name: "answer_1"})) == "It is Paris."
    assert list(state.value_iter(**{name: "answer_2"}))[-1] == "The tower and the museum."

    async def both() -> list[Any]:
        names: dict[str, Any] = {name: "answer_1"}
        text = [piece async for piece in state.text_async_iter(**names)]
        return [*text, *[v async for v in state.value_async_iter(**{name: "answer_1"})]]

    assert asyncio.run(both()) == ["It is Paris."] * 2


@pytest.mark.parametrize("name", ["prefix_str", "text"])
def test_a_prefix_goes_by_both_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, committed = sgl.Mock("x"), []
    monkeypatch.setattr(backend, "commit", lambda prompt: committed.append(prompt.text))
    backend.cache_prefix(**{name: "Once"})
    backend.cache_prefix("Twice")
    assert committed == ["Once", "Twice"]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sgl.image(expr=b"x", path=b"x"), "expr and path are one parameter; give expr"),  # type: ignore[call-arg]
        (lambda: run().text_iter(var_name="a", var="b"), "var_name and var are one parameter"),  # type: ignore[call-arg]
        (lambda: run().text_iter(name="a"), "unexpected keyword argument 'name'"),  # type: ignore[call-arg]
    ],
)
def test_both_names_at_once_are_refused(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        call()


@pytest.mark.parametrize("name", ["expr", "path"])
def test_an_image_goes_by_both_names(name: str) -> None:
    backend = sgl.Mock("x")
    program = sgl.function(lambda s: s.__iadd__(sgl.image(**{name: b"\x89PNG"}) + sgl.gen("x")))
    program.run(backend=backend)
    (medium,) = backend.calls[-1].prompt.media
    assert medium.kind == "image"


@pytest.mark.parametrize("name", ["prompt", "text"])
def test_an_embedding_goes_by_both_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = object.__new__(sgl.RuntimeEndpoint)
    runtime = object.__new__(sgl.Runtime)
    runtime.endpoint = endpoint
    sent = []
    monkeypatch.setattr(endpoint, "_send", lambda *request: sent.append(request[:3]))
    endpoint.encode(**{name: "a"})
    runtime.encode(**{name: "a"})
    assert sent == [("POST", "/encode", {"text": "a"})] * 2


def test_an_offset_of_positions_is_refused_by_copy_and_fork() -> None:
    @sgl.function
    def program(s):
        for made in (lambda: s.fork(1, [0]), lambda: s.copy([0]).__enter__()):
            with pytest.raises(sgl.Unsupported, match="position_ids_offset is not supported"):
                made()

    program.run(backend=sgl.Mock())
