"""The public interface: every export that programs may rely on, and the signatures that upstream
lacks or has otherwise. The others are compared in ``test_upstream_signatures``."""

from __future__ import annotations

import inspect
from operator import attrgetter

import pytest
import sglang as sgl
import sglang.utils

EXPORTS = """
    function gen gen_int gen_string select image video separate_reasoning
    system user assistant system_begin system_end user_begin user_end assistant_begin assistant_end
    set_default_backend flush_cache get_server_info inspect_history
    Runtime Engine RuntimeEndpoint OpenAI Anthropic LiteLLM Mock Recorder Replay ServerArgs
    token_length_normalized greedy_token_selection unconditional_likelihood_normalized
    SglFunction ProgramState ForkGroup global_config __version__
    SglangError ProgramError BackendError InvalidOutput TraceError Unsupported
"""

INHERITED = """
    name=None, max_tokens=None, n=None, stop=None, stop_token_ids=None, stop_regex=None,
    temperature=None, top_p=None, top_k=None, min_p=None, frequency_penalty=None,
    presence_penalty=None, ignore_eos=None, return_logprob=None, logprob_start_len=None,
    top_logprobs_num=None, return_text_in_logprobs=None
"""
GENERATE = """
    self, prompt=None, sampling_params=None, input_ids=None, image_data=None, return_logprob=None,
    logprob_start_len=None, top_logprobs_num=None, stream=False
"""

# Parameters and defaults, as Python writes them. More may be there, if they have defaults.
SIGNATURES = {
    "gen": INHERITED + """, min_tokens=None, dtype=None, choices=None,
        choices_method=sgl.token_length_normalized, regex=None, json_schema=None""",
    "gen_int": INHERITED,
    "gen_string": INHERITED,
    "video": "path, num_frames",
    "separate_reasoning": "expr, model_type",
    "SglFunction.compile": "self, *, backend=None, **kw",
    "SglFunction.explain": "self, *args, **kw",
    "ProgramState.value": "self, name",
    "ProgramState.show": "self",
    "ForkGroup.__getitem__": "self, index",
    "ForkGroup.__setitem__": "self, index, value",
    "ForkGroup.__iter__": "self",
    "ForkGroup.__len__": "self",
    "RuntimeEndpoint.encode": "self, prompt, **fields",
    "OpenAI": "model_name, is_chat_model=None, chat_template=None, is_azure=False, **client_args",
    "Anthropic": "model_name, **client_args",
    "LiteLLM": "model_name, **client_args",
    "Runtime": "**server_args",
    "Runtime.generate": "self, prompt=None, sampling_params=None, **fields",
    "Runtime.async_generate": "self, prompt=None, sampling_params=None, **fields",
    "Runtime.encode": "self, prompt, **fields",
    "Engine.generate": GENERATE,
    "Engine.async_generate": GENERATE,
    "Engine.encode": "self, prompt=None, input_ids=None, **fields",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS.split())
def test_it_is_exported(name: str) -> None:
    assert getattr(sgl, name) is not None
    assert name in dir(sgl)


@pytest.mark.parametrize("path", SIGNATURES)
def test_the_signature_is_the_contracts(path: str) -> None:
    parameters = " ".join(SIGNATURES[path].split())
    wanted = inspect.signature(eval(f"lambda {parameters}: None")).parameters
    found = inspect.signature(attrgetter(path)(sgl)).parameters
    for name, parameter in wanted.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            assert parameter.kind in {p.kind for p in found.values()}, parameter
        elif parameter.default is not parameter.empty:
            assert found[name].default == parameter.default, parameter
        else:
            assert name in found
    required = {
        name
        for name, p in found.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    assert required <= wanted.keys()


def test_what_can_only_be_seen_at_run_time() -> None:
    mock = sgl.Mock("hello")
    program = sgl.function(lambda s, x: x)
    state = program.run(1, backend=mock)
    assert state.ret_value == 1
    assert program(2, backend=mock).ret_value == 2
    assert program(state, 3) == 3
    service = sgl.OpenAI("m", base_url="http://127.0.0.1:9/v1")
    service.token_usage.reset()
    assert (service.token_usage.prompt_tokens, service.token_usage.completion_tokens) == (0, 0)
