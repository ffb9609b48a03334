"""Upstream SGLang's launch lines for one device, and its flags: meant, without effect, or refused.

The lines are those of its documentation, examples, benchmarks and tests; models are replaced.
"""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pytest
from helpers.paths import ROOT
from sglang.backend.engine.launched_runtime import _flags
from sglang.srt.config import Config, add_arguments, from_arguments
from sglang.srt.config.command_line import ELSEWHERE, Parser
from sglang.srt.config.translation import FLAGS, add_upstream_arguments, option
from sglang.srt.config.upstream import (
    ABSENT,
    ABSENT_VALUES,
    MEANS,
    SPELLINGS,
    VALUES,
    WITHOUT_EFFECT,
    FlagRow,
)
from sglang.srt.core.nearest import nearest

DOCS = ROOT / "docs" / "coming-from.md"
OPEN = {"host": "0.0.0.0"}
QUIET = {**OPEN, "log_level": "warning"}
AT_8000 = {**OPEN, "port": 8000}


def refused(feature: str) -> re.Pattern[str]:
    return re.compile(re.escape(feature))


# A line without its model and its port, and the settings it means, or the feature it is refused by.
LINES: list[tuple[str, dict[str, Any] | re.Pattern[str]]] = [
    # The quick start, install and usage pages.
    ("", {}),
    ("--host 0.0.0.0", OPEN),
    ("--host 0.0.0.0 --log-level warning", QUIET),
    ("--host 0.0.0.0 --is-embedding --log-level warning", QUIET),
    ("--host 0.0.0.0 --port 8000", AT_8000),
    ("--host 0.0.0.0 --port 8000 --tp 1", AT_8000),
    ("--host 0.0.0.0 --enable-metrics", OPEN),
    ("--api-key sk-123456 --mem-fraction-static 0.8",
     {"api_key": "sk-123456", "mem_fraction_static": 0.8}),
    ("--host 0.0.0.0 --disable-radix-cache --chunked-prefill-size -1 --attention-backend triton "
     "--is-embedding --log-level warning",
     {**QUIET, "disable_radix_cache": True, "chunked_prefill_size": -1,
      "attention_backend": "triton"}),
    ("--disable-radix-cache --chunked-prefill-size -1 --attention-backend torch_native "
     "--is-embedding",
     {"disable_radix_cache": True, "chunked_prefill_size": -1}),
    ("--host 0.0.0.0 --expert-distribution-recorder-mode stat --log-level warning",
     refused("reporting which experts were taken")),
    ("--skip-tokenizer-init", {}),
    ("--model-impl transformers", {}),
    ("--attention-backend fa3 --enable-deterministic-inference",
     refused("batch-invariant arithmetic on a GPU")),
    ("--is-embedding --host 0.0.0.0 --trust-remote-code",  OPEN),
    ("--disable-radix-cache --chunked-prefill-size -1 --attention-backend triton --is-embedding "
     "--trust-remote-code --host 0.0.0.0",
     {**OPEN, "disable_radix_cache": True, "chunked_prefill_size": -1,
      "attention_backend": "triton"}),
    ("--reasoning-parser qwen3 --tool-call-parser qwen25 --trust-remote-code --host 0.0.0.0",
     {**OPEN, "reasoning_parser": "qwen3", "tool_call_parser": "qwen"}),
    ("--config config.yaml", refused("a configuration file")),
    # Server arguments, hyperparameters.
    ("--mem-fraction-static 0.7", {"mem_fraction_static": 0.7}),
    ("--chunked-prefill-size 4096", {"chunked_prefill_size": 4096}),
    ("--enable-torch-compile", {}),
    ("--enable-torch-compile --torch-compile-max-bs 8", {}),
    ("--schedule-policy lpm --schedule-conservativeness 0.3", {}),
    ("--schedule-conservativeness 1.3 --cuda-graph-max-bs 512 --max-running-requests 512",
     {"cuda_graph_max_bs": 512, "max_running_requests": 512}),
    ("--max-prefill-tokens 16384 --max-total-tokens 65536", {"max_total_tokens": 65536}),
    ("--enable-p2p-check --disable-cuda-graph", {"disable_cuda_graph": True}),
    ("--log-requests --log-requests-level 3 --log-level-http warning",
     {"log_requests": True, "log_requests_level": 3}),
    ("--log-level info --log-level-http error --decode-log-interval 10 --show-time-cost", {}),
    ("--enable-metrics --collect-tokens-histogram --bucket-time-to-first-token 0.1 1.0", {}),
    ("--enable-cache-report --served-model-name m", {"served_model_name": "m"}),
    ("--random-seed 42 --stream-interval 2 --watchdog-timeout 600",
     {"random_seed": 42, "stream_interval": 2, "watchdog_timeout": 600.0}),
    ("--context-length 4096 --trust-remote-code", {"context_length": 4096}),
    ("--revision main --tokenizer-mode auto --load-format auto", {"revision": "main"}),
    ("--dtype half", {"dtype": "float16"}),
    ("--dtype float", {"dtype": "float32"}),
    ("--dtype bfloat16 --kv-cache-dtype auto", {"dtype": "bfloat16"}),
    ("--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8"}),
    ("--kv-cache-dtype fp8_e5m2", {"kv_cache_dtype": "fp8"}),
    ("--kv-cache-dtype bf16", {}),
    ("--tp 1 --dp 1 --nnodes 1 --node-rank 0", {}),
    ("--page-size 16 --disable-overlap-schedule",
     {"page_size": 16, "disable_overlap_schedule": True}),
    ("--enable-mixed-chunk --num-continuous-decode-steps 4", {}),
    ("--constrained-json-whitespace-pattern '[\\n\\t ]*' --grammar-backend outlines",
     {"constrained_json_whitespace_pattern": "[\\n\\t ]*", "grammar_backend": "outlines"}),
    ("--skip-server-warmup --random-seed 1", {"skip_server_warmup": True, "random_seed": 1}),
    ("--enable-hierarchical-cache --hicache-ratio 3 --hicache-size 30",
     {"enable_hierarchical_cache": True, "hicache_ratio": 3.0, "hicache_size": 30.0}),
    ("--enable-hierarchical-cache --hicache-storage-backend file",
     refused("KV in another store, or in other machines' memory")),
    # Attention backends.
    ("--attention-backend flashinfer", {"attention_backend": "flashinfer"}),
    ("--attention-backend triton", {"attention_backend": "triton"}),
    ("--attention-backend torch_native", {}),
    ("--attention-backend fa3", {}),
    ("--attention-backend flex_attention", {}),
    ("--attention-backend fa3 --trust-remote-code", {}),
    ("--prefill-attention-backend fa3 --decode-attention-backend flashinfer", {}),
    # Structured outputs, tools and reasoning.
    ("--host 0.0.0.0 --grammar-backend xgrammar", OPEN),
    ("--grammar-backend llguidance", {"grammar_backend": "llguidance"}),
    ("--grammar-backend outlines --port 30000", {"grammar_backend": "outlines"}),
    ("--host 0.0.0.0 --reasoning-parser deepseek-r1 --log-level warning",
     {**QUIET, "reasoning_parser": "deepseek-r1"}),
    ("--reasoning-parser qwen3 --grammar-backend xgrammar", {"reasoning_parser": "qwen3"}),
    ("--reasoning-parser qwen3-thinking --tool-call-parser qwen25",
     {"reasoning_parser": "qwen3-thinking", "tool_call_parser": "qwen"}),
    ("--tool-call-parser qwen25 --host 0.0.0.0 --log-level warning",
     {**QUIET, "tool_call_parser": "qwen"}),
    ("--tool-call-parser qwen", {"tool_call_parser": "qwen"}),
    ("--tool-call-parser llama3 --host 0.0.0.0", {**OPEN, "tool_call_parser": "llama3"}),
    ("--tool-call-parser mistral", {"tool_call_parser": "mistral"}),
    ("--tool-call-parser pythonic --tp 1 --log-level warning",
     {"tool_call_parser": "pythonic", "log_level": "warning"}),
    ("--host 0.0.0.0 --tool-call-parser hermes", {**OPEN, "tool_call_parser": "hermes"}),
    # Adapters.
    ("--enable-lora --lora-paths lora0=some/lora --max-loras-per-batch 1 --log-level warning",
     {"enable_lora": True, "lora_paths": ("lora0=some/lora",), "max_loras_per_batch": 1,
      "log_level": "warning"}),
    ("--enable-lora --lora-paths lora0=some/lora lora1=other/lora --max-loras-per-batch 2",
     {"enable_lora": True, "lora_paths": ("lora0=some/lora", "lora1=other/lora"),
      "max_loras_per_batch": 2}),
    ("--enable-lora --cuda-graph-max-bs 2 --max-loras-per-batch 2 --max-lora-rank 256 "
     "--lora-target-modules all --log-level warning",
     {"enable_lora": True, "cuda_graph_max_bs": 2, "max_loras_per_batch": 2, "max_lora_rank": 256,
      "log_level": "warning"}),
    ("""--enable-lora --lora-paths '{"lora_name": "a", "lora_path": "some/lora"}'"""
     " --lora-backend csgmv --max-lora-chunk-size 16",
     {"enable_lora": True, "lora_paths": ("a=some/lora",)}),
    ("--lora-paths lora0=some/lora --disable-radix-cache --lora-backend triton",
     {"lora_paths": ("lora0=some/lora",), "disable_radix_cache": True}),
    # Quantisation.
    ("--quantization awq", {"quantization": "awq"}),
    ("--quantization awq_marlin --dtype half", {"quantization": "awq", "dtype": "float16"}),
    ("--quantization gptq_marlin", {"quantization": "gptq"}),
    ("--quantization gptq --host 0.0.0.0 --port 8000", {**AT_8000, "quantization": "gptq"}),
    ("--quantization fp8", {"quantization": "fp8"}),
    ("--quantization w8a8_fp8 --host 0.0.0.0", {**OPEN, "quantization": "compressed-tensors"}),
    ("--quantization w8a8_int8", {"quantization": "compressed-tensors"}),
    ("--load-format bitsandbytes --quantization bitsandbytes", {"quantization": "bitsandbytes"}),
    ("--load-format gguf --quantization gguf", {"quantization": "gguf"}),
    ("--torchao-config int4wo-128", {"quantization": "int4"}),
    ("--torchao-config int8wo --host 0.0.0.0", {**OPEN, "quantization": "int8wo"}),
    ("--quantization modelopt_fp8", refused("--quantization is 'modelopt_fp8'; use one of")),
    # Speculation.
    ("--speculative-algorithm STANDALONE --speculative-draft-model-path d "
     "--speculative-num-steps 4 --speculative-eagle-topk 2 --speculative-num-draft-tokens 7",
     {"speculative_algorithm": "draft", "speculative_draft_model_path": "d",
      "speculative_num_draft_tokens": 7}),
    ("--speculative-algorithm NGRAM --speculative-num-draft-tokens 16 --cuda-graph-max-bs 8",
     {"speculative_algorithm": "ngram", "cuda_graph_max_bs": 8}),
    ("--speculative-algorithm EAGLE --speculative-draft-model-path d --speculative-num-steps 3 "
     "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --cuda-graph-max-bs 8",
     refused("--speculative-algorithm eagle: speculation by a model trained on another's")),
    # Images.
    ("--chat-template vicuna_v1.1 --tokenizer-path t --log-requests",
     {"chat_template": "vicuna", "tokenizer_path": "t", "log_requests": True}),
    ("--host 0.0.0.0 --chat-template qwen2-vl --log-level warning",
     {**QUIET, "chat_template": "chatml"}),
    ("--chat-template chatml-llava --mem-fraction-static 0.5",
     {"chat_template": "chatml", "mem_fraction_static": 0.5}),
    ("--enable-multimodal --mm-attention-backend sdpa --trust-remote-code", {}),
    ("--keep-mm-feature-on-device --disable-fast-image-processor", {}),
    ("--cuda-graph-max-bs 4 --enable-multimodal --mem-fraction-static 0.35 "
     "--log-level-http warning",
     {"cuda_graph_max_bs": 4, "mem_fraction_static": 0.35}),
    # CPUs.
    ("--trust-remote-code --disable-overlap-schedule --device cpu --host 0.0.0.0 --tp 1",
     {**OPEN, "disable_overlap_schedule": True, "device": "cpu"}),
    ("--device cpu --attention-backend intel_amx --quantization w8a8_int8 "
     "--mem-fraction-static 0.8 --max-total-tokens 65536",
     {"device": "cpu", "quantization": "compressed-tensors", "mem_fraction_static": 0.8,
      "max_total_tokens": 65536}),
    ("--device cpu --attention-backend torch_native --disable-radix-cache --trust-remote-code",
     {"device": "cpu", "disable_radix_cache": True}),
    ("--device cpu --enable-torch-compile --torch-compile-max-bs 4 --disable-overlap-schedule",
     {"device": "cpu", "disable_overlap_schedule": True}),
    # The tests of its runtime.
    ("--max-total-token 1024 --context-len 8192",
     {"max_total_tokens": 1024, "context_length": 8192}),
    ("--max-total-tokens 1000 --context-length 1000",
     {"max_total_tokens": 1000, "context_length": 1000}),
    ("--max-running-requests 1 --max-queued-requests 3 --enable-priority-scheduling",
     {"max_running_requests": 1, "max_queued_requests": 3, "schedule_policy": "priority"}),
    ("--max-running-requests 2 --max-queued-requests 1 --attention-backend triton",
     {"max_running_requests": 2, "max_queued_requests": 1, "attention_backend": "triton"}),
    ("--chunked-prefill-size 128 --disable-radix-cache",
     {"chunked_prefill_size": 128, "disable_radix_cache": True}),
    ("--chunked-prefill-size 32 --enable-mixed-chunk", {"chunked_prefill_size": 32}),
    ("--disable-radix-cache --chunked-prefill-size -1",
     {"disable_radix_cache": True, "chunked_prefill_size": -1}),
    ("--max-running-requests 10 --disable-overlap-schedule",
     {"max_running_requests": 10, "disable_overlap_schedule": True}),
    ("--page-size 16 --chunked-prefill-size 20", {"page_size": 16, "chunked_prefill_size": 20}),
    ("--sampling-backend pytorch --disable-radix-cache", {"disable_radix_cache": True}),
    ("--triton-attention-reduce-in-fp32 --attention-backend triton",
     {"attention_backend": "triton"}),
    ("--triton-attention-num-kv-splits 16 --attention-backend triton --cuda-graph-max-bs 4",
     {"attention_backend": "triton", "cuda_graph_max_bs": 4}),
    ("--trust-remote-code --enable-torch-compile --cuda-graph-max-bs 2 --chunked-prefill-size 256",
     {"cuda_graph_max_bs": 2, "chunked_prefill_size": 256}),
    ("--enable-torch-compile --cuda-graph-max-bs 4 --attention-backend fa3",
     {"cuda_graph_max_bs": 4}),
    ("--disable-cuda-graph-padding --mem-fraction-static 0.7", {"mem_fraction_static": 0.7}),
    ("--cuda-graph-bs 1 2 4 8 --disable-jump-forward", {"disable_jump_forward": True}),
    ("--disable-cuda-graph --disable-outlines-disk-cache", {"disable_cuda_graph": True}),
    ("--enable-metrics --enable-metrics-for-all-schedulers --cuda-graph-max-bs 2",
     {"cuda_graph_max_bs": 2}),
    ("--load-format dummy --max-total-tokens 4096",
     {"load_format": "dummy", "max_total_tokens": 4096}),
    ("""--load-format dummy --json-model-override-args '{"num_hidden_layers": 2}'""",
     refused("changing the model's configuration")),
    ("--enable-custom-logit-processor", refused("a custom logit processor")),
    ("--tokenizer-worker-num 4 --mem-fraction-static 0.7", {"mem_fraction_static": 0.7}),
    ("--is-embedding --attention-backend flashinfer --disable-cuda-graph",
     {"attention_backend": "flashinfer", "disable_cuda_graph": True}),
    ("--sleep-on-idle --stream-interval 8", {"stream_interval": 8}),
    ("--mem-fraction 0.6 --dtype float16", {"mem_fraction_static": 0.6, "dtype": "float16"}),
    ("--chunked-prefill-size 128 --max-total-tokens 20000 --schedule-policy lpm",
     {"chunked_prefill_size": 128, "max_total_tokens": 20000}),
    ("--chunked-prefill-size 128 --max-total-tokens 20000 --schedule-policy fcfs",
     {"chunked_prefill_size": 128, "max_total_tokens": 20000, "schedule_policy": "fcfs"}),
    ("--max-running-requests 10 --grammar-backend llguidance",
     {"max_running_requests": 10, "grammar_backend": "llguidance"}),
    ("--max-running-requests 10 --grammar-backend xgrammar", {"max_running_requests": 10}),
    ("--max-running-requests 10 --grammar-backend outlines",
     {"max_running_requests": 10, "grammar_backend": "outlines"}),
    ("--disable-cuda-graph --attention-backend triton --mem-fraction-static 0.7",
     {"disable_cuda_graph": True, "attention_backend": "triton", "mem_fraction_static": 0.7}),
    ("--is-embedding --enable-metrics", {}),
    ("--enable-metrics --cuda-graph-max-bs 2", {"cuda_graph_max_bs": 2}),
    ("--dtype bfloat16", {"dtype": "bfloat16"}),
    ("--trust-remote-code --disable-cuda-graph --mem-fraction-static 0.8",
     {"disable_cuda_graph": True, "mem_fraction_static": 0.8}),
    # Other projects that start it: benchmarks, agents, evaluation harnesses.
    ("--host 0.0.0.0 --port 8000 --enable-mixed-chunk", AT_8000),
    ("--host 0.0.0.0 --port 8000 --max-running-requests 256 --max-prefill-tokens 4096 "
     "--mem-fraction-static 0.9 --enable-torch-compile",
     {**AT_8000, "mem_fraction_static": 0.9}),
    ("--context-length 16384 --mem-fraction-static 0.45 --page-size 16 --chunked-prefill-size 8192 "
     "--enable-metrics --disable-radix-cache",
     {"context_length": 16384, "mem_fraction_static": 0.45, "page_size": 16,
      "chunked_prefill_size": 8192, "disable_radix_cache": True}),
    ("--attention-backend triton --mem-fraction-static 0.85 --schedule-policy lpm "
     "--cuda-graph-max-bs 16 --disable-cuda-graph",
     {"attention_backend": "triton", "mem_fraction_static": 0.85, "cuda_graph_max_bs": 16,
      "disable_cuda_graph": True}),
    ("--base-gpu-id 0 --tp-size 1 --mem-fraction-static 0.6", {"mem_fraction_static": 0.6}),
]  # fmt: skip


@cache
def parser() -> Parser:
    """The parser of all flags; adding them takes longer than parsing a line."""
    made = Parser(prog="x")
    add_arguments(made)
    return made


def parsed(line: str) -> Config:
    """The Config of a line. Raises ValueError."""
    words = ["--model-path", "some/model", *shlex.split(line)]
    return from_arguments(parser().parse_args(words))


def changed(config: Config) -> dict[str, Any]:
    """The settings that are not at their defaults, the model aside."""
    usual = Config().settings()
    found = {name: value for name, value in config.settings().items() if value != usual[name]}
    assert found.pop("model_path") == "some/model"
    return found


@pytest.mark.parametrize(("line", "meant"), LINES, ids=[line or "(no flag)" for line, _ in LINES])
def test_a_launch_line_of_upstream_is_understood(
    line: str, meant: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if isinstance(meant, re.Pattern):
        with pytest.raises(ValueError, match=meant):
            parsed(line)
        return
    with caplog.at_level(logging.WARNING):
        assert changed(parsed(line)) == meant
    assert len(caplog.records) <= 1


def test_most_launch_lines_of_upstream_start() -> None:
    starting = sum(isinstance(meant, dict) for _, meant in LINES)
    assert len(LINES) >= 106
    assert len({line for line, _ in LINES}) == len(LINES)
    assert starting / len(LINES) >= 0.94


def test_one_warning_names_what_is_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parsed("--ep 1 --enable-cache-report --attention-backend torch_native --cuda-graph-bs 1 2")
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("accepted, and without effect here: ")
    for what in ("--ep 1 (", "--enable-cache-report (always on)", "--cuda-graph-bs 1 2 ("):
        assert what in said
    assert "--attention-backend torch_native (kernels are chosen by the device)" in said


def test_what_is_meant_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parsed("--dtype half --kv-cache-dtype fp8_e4m3 --tool-call-parser qwen25")
        Config.of(ep_size=None, trust_remote_code=False, log_level_http=None, cuda_graph_bs=[])
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ep": 4}, "--ep 4: expert parallelism is not in this version"),
        ({"enable_memory_saver": True}, "--enable-memory-saver: giving memory back while serving"),
        ({"speculative_algorithm": "EAGLE3"}, "use ngram, or draft and a smaller model"),
        ({"attention_backend": "ascend"}, "attention on NPUs is not in this version; use auto"),
        ({"tool_call_parser": "deepseekv3"}, "--tool-call-parser is 'deepseekv3'; use one of"),
        ({"load_format": "pt"}, "reading pickled weights, which may run code, is not in this"),
        ({"torchao_config": "fp8wo"}, "--torchao-config is 'fp8wo'; use one of 'int8dq'"),
        ({"lora_paths": ['{"lora_name": "a"}']}, "give NAME=PATH, or a JSON object"),
        ({"lora_paths": ['{"lora_name": "a", "lora_path": "b", "pinned": true}']}, "is pinned by"),
    ],
)  # fmt: skip
def test_an_absent_feature_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Config.of(**settings)


def sample(name: str) -> list[str]:
    """A flag of the tables with some value."""
    nargs = FLAGS[name].nargs if name in FLAGS else ""
    return [option(name), *({"": [], "=": ["7"], "*": ["7", "8"]}[nargs])]


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_of_the_tables_has_its_fate(name: str) -> None:
    line = shlex.join(sample(name))
    if FLAGS[name].absent:
        with pytest.raises(ValueError, match=re.escape(f"{FLAGS[name].row.what} is not in this")):
            parsed(line)
        for value in FLAGS[name].inert:
            assert changed(parsed(f"{option(name)} {value}")) == {}
    else:
        assert changed(parsed(line)) == {}


def test_the_tables_hold_no_flag_twice_and_no_setting() -> None:
    names = [
        flag for rows in (WITHOUT_EFFECT, ABSENT) for row in rows for flag in row.flags.split()
    ]
    assert len(names) == len({re.split("[=*]", name)[0] for name in names}) == len(FLAGS)
    settings = Config().settings()
    assert not ({*FLAGS} | {*MEANS} | {*SPELLINGS}) & {*settings}
    assert {*VALUES} | {*ABSENT_VALUES} | {*SPELLINGS.values()} <= {*settings}
    assert {setting for setting, _ in MEANS.values()} <= {*settings}


def test_help_shows_the_settings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shown = set(re.findall(r"--[a-z][a-z-]*", parser().format_help()))
    assert not shown & {option(name) for name in {*FLAGS, *MEANS, *SPELLINGS}}
    assert "--model-path" in shown
    assert parser().format_help().rstrip().endswith("docs/coming-from.md lists them.")


def test_an_abbreviation_is_of_what_is_shown() -> None:
    """More flags make no abbreviation ambiguous that was not."""
    assert parsed("--enable-metric").server.enable_metrics
    assert parsed("--max-queued 7").schedule.max_queued_requests == 7


def test_did_you_mean_never_proposes_another_meaning() -> None:
    ours = argparse.ArgumentParser()
    add_arguments(ours)
    settings = [option(name) for name in Config().settings()]
    theirs = argparse.ArgumentParser()
    add_upstream_arguments(theirs)
    for flag in theirs._option_string_actions:
        if flag not in ("-h", "--help") and not flag.startswith("--no-"):
            assert nearest(flag, settings) in (None, option(SPELLINGS.get(flag[2:], ""))), flag
    for flag in ("--max-prefill-words", "--min-total-tokens", "--enable-overlap-schedule",
                 "--max-batch-size", "--cache-dtype", "--lora-rank", "--ssl-cafile"):  # fmt: skip
        assert nearest(flag, settings) is None, flag
    assert not {*ELSEWHERE} & {*ours._option_string_actions}
    assert nearest("x" * 257, ["x" * 256]) is None, "a name of any length is not compared"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("--prot", "--port"),
        ("--page-sise", "--page-size"),
        ("--maxrunning-requests", "--max-running-requests"),
        ("--log-levle", "--log-level"),
        ("context_lenght", "context_length"),
    ],
)
def test_did_you_mean_proposes_a_slip(slip: str, meant: str) -> None:
    names = Config().settings()
    assert nearest(slip, names if "_" in slip else map(option, names)) == meant


def table(heading: str) -> list[tuple[str, str]]:
    """The rows of the page's table with this first line, as pairs of cells."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index(heading) + 2 :]
    end = rows.index("")
    cells = (row.strip("| ").split(" | ") for row in rows[:end])
    return [(first, second) for first, second in cells]


def rows_of(rows: Iterable[FlagRow]) -> list[tuple[str, str]]:
    """Rows as the page shows them: the reason, and each flag with its inert values."""
    found = []
    for row in rows:
        flags = []
        for text in row.flags.split():
            flag = FLAGS[re.split("[=*]", text)[0].replace("-", "_")]
            but = f" (but {', '.join(f'`{one}`' for one in flag.inert)})" if flag.inert else ""
            flags.append(f"`{option(flag.name)}`{but}")
        what = f"{row.what}; {row.advice}" if row.advice else row.what
        found.append((what, ", ".join(flags)))
    return found


def test_the_documentation_has_every_flag() -> None:
    """Row by row: a flag stands in the table of what becomes of it, with its reason, and nowhere
    else."""
    assert table("| why | flags |") == rows_of(WITHOUT_EFFECT)
    values = [
        (f"{feature.rstrip(',')}; {advice}", f"`{option(setting)}` {names}")
        for setting, absent in ABSENT_VALUES.items()
        for (feature, advice), names in together(absent).items()
    ]
    refused_rows = table("| what is not here | flags |")
    assert refused_rows[: len(ABSENT)] == rows_of(ABSENT)
    assert sorted(refused_rows[len(ABSENT) :]) == sorted(values)


def test_the_documentation_has_every_meaning() -> None:
    meant = table("| meant | |")
    expected = [
        (f"`{option(name)}`", f"`{option(setting)}`") for name, setting in SPELLINGS.items()
    ]
    for setting, values in VALUES.items():
        for (value, note), names in together(values).items():
            warned = f", with a warning: {note}" if note else ""
            expected.append((f"`{option(setting)}` {names}", f"`{value}`{warned}"))
    assert set(expected) <= set(meant)
    others = [first for first, _ in meant if (first, dict(meant)[first]) not in expected]
    flags = {re.split("`", first)[1] for first in others}
    assert flags == {option(name) for name in MEANS} | {"--lora-target-modules", "--lora-paths"}
    assert len(meant) == len(set(meant))


def together(values: Mapping[str, tuple[Any, str]]) -> dict[tuple[Any, str], str]:
    """The names of values by what they mean."""
    found: dict[tuple[Any, str], list[str]] = {}
    for name, meaning in values.items():
        found.setdefault(meaning, []).append(f"`{name}`")
    return {meaning: ", ".join(names) for meaning, names in found.items()}


def test_runtime_passes_settings_of_upstream_on() -> None:
    """Keyword arguments of ``sglang.Runtime`` become flags of a server that it starts."""
    settings = {"tp_size": 1, "trust_remote_code": False, "is_embedding": True, "dtype": "half",
                "cuda_graph_bs": [1, 2], "enable_priority_scheduling": True}  # fmt: skip
    assert changed(parsed(shlex.join(_flags(settings)))) == {
        "dtype": "float16", "schedule_policy": "priority",
    }  # fmt: skip
