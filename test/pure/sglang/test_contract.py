"""The public interface: every export, parameter, default and method that programs may rely on."""

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

SAMPLING = """
    stop=None, stop_token_ids=None, stop_regex=None, temperature={}, top_p={}, top_k={}, min_p={},
    frequency_penalty={}, presence_penalty={}, ignore_eos={}, return_logprob=None,
    logprob_start_len=None, top_logprobs_num=None, return_text_in_logprobs=None
"""
INHERITED = "name=None, max_tokens=None, n=None, " + SAMPLING.format(*[None] * 7)
DEFAULTS = "max_new_tokens=128, n=1, " + SAMPLING.format(1.0, 1.0, -1, 0.0, 0.0, 0.0, False)
GENERATE = """
    self, prompt=None, sampling_params=None, input_ids=None, image_data=None, return_logprob=None,
    logprob_start_len=None, top_logprobs_num=None, stream=False
"""

# Parameters and defaults, as Python writes them. More may be there, if they have defaults.
SIGNATURES = {
    "function": "func=None, num_api_spec_tokens=None",
    "gen": INHERITED + """, min_tokens=None, dtype=None, choices=None,
        choices_method=sgl.token_length_normalized, regex=None, json_schema=None""",
    "gen_int": INHERITED,
    "gen_string": INHERITED,
    "select": """name=None, choices=None, temperature=0.0,
        choices_method=sgl.token_length_normalized""",
    "image": "expr",
    "video": "path, num_frames",
    "separate_reasoning": "expr, model_type",
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
    "SglFunction.run": f"""self, *args, {DEFAULTS}, stream=False, backend=None,
        use_thread=True, **kw""",
    "SglFunction.run_batch": f"""self, batch_kwargs, *, {DEFAULTS}, backend=None,
        num_threads="auto", progress_bar=False, generator_style=False""",
    "SglFunction.trace": "self, *, backend=None, **kw",
    "SglFunction.bind": "self, **kw",
    "SglFunction.cache": "self, backend=None",
    "SglFunction.compile": "self, *, backend=None, **kw",
    "SglFunction.explain": "self, *args, **kw",
    "SglFunction.__call__": "self, *args, **kw",
    "ProgramState.__iadd__": "self, other",
    "ProgramState.__getitem__": "self, name",
    "ProgramState.__setitem__": "self, name, value",
    "ProgramState.__contains__": "self, name",
    "ProgramState.get_var": "self, name",
    "ProgramState.set_var": "self, name, value",
    "ProgramState.get_meta_info": "self, name",
    "ProgramState.value": "self, name",
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
    "ProgramState.show": "self",
    "ForkGroup.__getitem__": "self, index",
    "ForkGroup.__setitem__": "self, index, value",
    "ForkGroup.__iadd__": "self, other",
    "ForkGroup.__iter__": "self",
    "ForkGroup.__len__": "self",
    "ForkGroup.join": 'self, mode="gather_variable"',
    "RuntimeEndpoint.cache_prefix": "self, prefix_str",
    "RuntimeEndpoint.encode": "self, prompt, **fields",
    "RuntimeEndpoint": "base_url, api_key=None, verify=None, chat_template_name=None",
    "OpenAI": "model_name, is_chat_model=None, chat_template=None, is_azure=False, **client_args",
    "Anthropic": "model_name, **client_args",
    "LiteLLM": "model_name, **client_args",
    "Runtime": "**server_args",
    "Runtime.generate": "self, prompt=None, sampling_params=None, **fields",
    "Runtime.async_generate": "self, prompt=None, sampling_params=None, **fields",
    "Runtime.encode": "self, prompt, **fields",
    "Runtime.cache_prefix": "self, prefix",
    "Runtime.get_tokenizer": "self",
    "Runtime.shutdown": "self",
    "Engine": "**server_args",
    "Engine.generate": GENERATE,
    "Engine.async_generate": GENERATE,
    "Engine.encode": "self, prompt=None, input_ids=None, **fields",
    "Engine.flush_cache": "self",
    "Engine.get_server_info": "self",
    "Engine.shutdown": "self",
    "utils.terminate_process": "process",
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
