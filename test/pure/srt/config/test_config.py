"""Config: flags are derived from fields; a wrong setting is refused with its name and limit."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any

import pytest
from sglang.srt.config import (
    ApplicationsConfig,
    BatchesConfig,
    Config,
    EdgeConfig,
    GrammarConfig,
    InferletsConfig,
    KvEventsConfig,
    LoraConfig,
    MediaConfig,
    MemoryConfig,
    ModelConfig,
    OperationsConfig,
    ParallelConfig,
    ProgramGateConfig,
    RoutingConfig,
    ScheduleConfig,
    ServerConfig,
    SpeculationConfig,
    ToolboxConfig,
    add_arguments,
    add_model_argument,
    from_arguments,
)
from sglang.srt.config.command_line import ELSEWHERE, Parser, keys_from_environment

SECTIONS = (
    ModelConfig, MemoryConfig, ScheduleConfig, GrammarConfig, SpeculationConfig, LoraConfig,
    MediaConfig, ServerConfig, EdgeConfig, OperationsConfig, ToolboxConfig, ParallelConfig,
    ProgramGateConfig, RoutingConfig, KvEventsConfig, ApplicationsConfig, InferletsConfig,
    BatchesConfig,
)  # fmt: skip
FIELDS = [f for section in SECTIONS for f in dataclasses.fields(section)]


def parse(*words: str) -> Config:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return from_arguments(parser.parse_args(words))


def test_no_flag_gives_the_defaults() -> None:
    assert parse() == Config() == Config.of()


@pytest.mark.parametrize(
    "words", [["m"], ["m", "--port", "9"], ["--port", "9", "m"], ["m", "--model-path", "m"]]
)
def test_a_word_without_a_flag_is_the_model(words: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_model_argument(parser)
    add_arguments(parser)
    assert from_arguments(parser.parse_args(words)).model.model_path == "m"
    assert from_arguments(parser.parse_args([])) == Config()
    for flag in ("--model-path", "--model"):
        with pytest.raises(ValueError, match="MODEL is 'm' and --model-path is 'n'; give one"):
            from_arguments(parser.parse_args(["m", flag, "n"]))
    with pytest.raises(ValueError, match="--model-path"):
        from_arguments(parser.parse_args([""]))


def other(f: dataclasses.Field[Any]) -> tuple[list[str], Any]:
    """Words of a command line that set ``f`` to something other than its default, and that."""
    name = "--" + f.name.replace("_", "-")
    if isinstance(f.default, bool):
        return [name.replace("--", "--no-", 1) if f.default else name], not f.default
    if isinstance(f.default, tuple):
        values = (f.metadata["choices"] or ("a=b", "word"))[:2]
        return [name, *values], values
    if f.metadata["choices"]:
        value = f.metadata["choices"][-1]
    else:
        value = FORMS.get(f.name, {int: 7, float: 0.5, str: "word"}[type(f.default)])
    return [name, str(value)], value


FORMS = {"assigned_layers": "4", "dist_init_addr": "host:1", "slow_engine_factor": 2.5,
         "kv_events_config": '{"publisher": "null"}'}  # fmt: skip
COMPANIONS: dict[str, dict[str, Any]] = {
    "engine_keys": {"engines": ("tcp://127.0.0.1:1",)},  # settings that one needs beside it
    "shared_engines": {"engines": ("tcp://127.0.0.1:1",)},
    "hicache_storage_dir": {"enable_hierarchical_cache": True, "hicache_storage_size": 1.0},
    "hicache_storage_size": {"enable_hierarchical_cache": True, "hicache_storage_dir": "kv"},
    "nnodes": {"tp_size": 7, "dist_init_addr": "host:1"},
    "node_rank": {"tp_size": 8, "nnodes": 8, "dist_init_addr": "host:1"},
}


@pytest.mark.parametrize("f", FIELDS, ids=lambda f: f.name)
def test_every_field_is_a_flag_and_a_setting(f: dataclasses.Field[Any]) -> None:
    words, value = other(f)
    more = COMPANIONS.get(f.name, {})
    for name, companion in more.items():
        given = companion if isinstance(companion, tuple) else [str(companion)]
        words += ["--" + name.replace("_", "-"), *([] if companion is True else given)]
    assert parse(*words).settings()[f.name] == value
    assert parse(*words) == Config.of(**{f.name: value}, **more)
    assert f.metadata["help"]


def test_names_are_unique_across_sections() -> None:
    names = [f.name for f in FIELDS]
    assert len(names) == len(set(names)) == len(Config().settings())


def test_settings_round_trip() -> None:
    config = Config.of(page_size=16, port=0, schedule_policy="fcfs", dtype="float32")
    assert Config.of(**config.settings()) == config


def test_kernels_to_do_without_are_names_that_are_known() -> None:
    for given in ("gate,rotate_append", "gate rotate_append", ["gate", "rotate_append"]):
        found = Config.of(disable_fused_kernels=given).model.disable_fused_kernels
        assert found == ("gate", "rotate_append")
        assert parse("--disable-fused-kernels", "gate, rotate_append").model == ModelConfig(
            disable_fused_kernels=found
        )
    with pytest.raises(ValueError, match=r"--disable-fused-kernels names 'norm'; known are .*gate"):
        Config.of(disable_fused_kernels=("gate", "norm"))


def test_a_section_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().memory.page_size = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("page_size", 0, "at least 1"),
        ("max_total_tokens", -1, "0 or more"),
        ("mem_fraction_static", 1.0, "in [0, 1)"),
        ("mem_fraction_static", float("nan"), "in [0, 1)"),
        ("hicache_ratio", 0.0, "above 0, and at most 1e9"),
        ("hicache_ratio", 1e308, "above 0, and at most 1e9"),
        ("hicache_size", float("nan"), "from 0 to 1e9"),
        ("hicache_size", 1e300, "from 0 to 1e9"),
        ("context_length", -5, "0 or more"),
        ("threads", -1, "0 or more"),
        ("max_engine_restarts", -1, "0 or more"),
        ("max_resumes", -1, "0 or more"),
        ("max_connections", 0, "above 0"),
        ("max_header_bytes", -1, "above 0"),
        ("header_timeout", 0.0, "above 0"),
        ("body_timeout", float("nan"), "above 0"),
        ("keep_alive_timeout", 0, "above 0"),
        ("stream_write_timeout", float("inf"), "finite"),
        ("watchdog_timeout", -1.0, "0 or more"),
        ("watchdog_timeout", float("inf"), "finite"),
        ("exit_with_parent", -1, "0 or more"),
        ("max_running_requests", 0, "at least 1"),
        ("max_queued_requests", 0, "at least 1"),
        ("chunked_prefill_size", 0, "at least 1, or -1"),
        ("chunked_prefill_size", -2, "at least 1, or -1"),
        ("max_overtakes", -1, "0 or more"),
        ("latency_target_ms", 0.0, "above 0"),
        ("random_seed", 2**63, "a whole number of 64 bits"),
        ("port", 65536, "in [0, 65535]"),
        ("stream_interval", 0, "at least 1"),
        ("max_body_bytes", 0, "at least 1"),
        ("schedule_policy", "sjf", "lpm"),
        ("prefill_budget", "greedy", "throttle"),
        ("park_policy", "lru", "priced"),
        ("load_format", "pickle", "safetensors"),
        ("dtype", "int8", "bfloat16"),
        ("log_level", "loud", "warning"),
        ("speculative_num_draft_tokens", 0, "between 1 and 64"),
        ("speculative_num_draft_tokens", 65, "between 1 and 64"),
        ("speculative_algorithm", "eagle", "ngram"),
        ("speculative_algorithm", "draft", "--speculative-draft-model-path"),
    ],
)
def test_a_value_out_of_range_names_flag_value_and_limit(name: str, value: Any, limit: str) -> None:
    with pytest.raises(ValueError) as caught:
        Config.of(**{name: value})
    message = str(caught.value)
    assert "--" + name.replace("_", "-") in message
    assert str(value) in message
    assert limit in message


@pytest.mark.parametrize(
    ("settings", "model", "pattern"),
    [
        ({}, None, "[ ]?"),
        ({}, "", ""),
        ({}, "[ ]{0,2}", "[ ]{0,2}"),
        ({"constrained_json_whitespace_pattern": ""}, "[ ]?", ""),
        ({"constrained_json_whitespace_pattern": " ?"}, "", " ?"),
        ({"constrained_json_disable_any_whitespace": True}, "[ ]?", ""),
    ],
)
def test_flags_win_over_the_models_json(
    settings: dict[str, Any], model: str | None, pattern: str
) -> None:
    assert Config.of(**settings).grammar.json_whitespace(model) == pattern


def test_a_pattern_and_no_white_space_exclude_one_another() -> None:
    with pytest.raises(ValueError, match=r"pattern is ' \?' and --constrained-json-disable-any"):
        Config.of(
            constrained_json_whitespace_pattern=" ?", constrained_json_disable_any_whitespace=True
        )


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [("port", "30000", "int"), ("page_size", True, "int"), ("context_length", None, "int"),
     ("model_path", None, "str"), ("disable_radix_cache", 1, "bool"),
     ("mem_fraction_static", "0.5", "float")],
)  # fmt: skip
def test_a_value_of_the_wrong_type_names_the_right_one(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(TypeError, match=f"must be of type {wanted}"):
        Config.of(**{name: value})


def test_a_whole_number_is_a_fraction_too() -> None:
    assert Config.of(mem_fraction_static=0).memory.mem_fraction_static == 0


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(TypeError, match="'page_sise'; did you mean 'page_size'"):
        Config.of(page_sise=4)
    with pytest.raises(TypeError, match=r"unknown setting 'zzz'$"):
        Config.of(zzz=4)


def test_the_command_line_refuses_what_config_refuses() -> None:
    with pytest.raises(ValueError, match="--page-size is 0"):
        parse("--page-size", "0")
    with pytest.raises(argparse.ArgumentError):
        parse("--schedule-policy", "sjf")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--max-model-len", "--context-length"), ("--prot", "--port"), ("--max-words", "")],
)
def test_an_unknown_flag_is_told_what_it_was_to_be(
    flag: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="x")
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([flag, "2"])
    usage, said = capsys.readouterr().err.splitlines()
    assert usage == "usage: x [--help] [flags]"
    assert said.endswith(f"; did you mean {meant}?" if meant else f"{flag} 2")


def test_flags_of_other_servers_lead_to_flags_of_this_one() -> None:
    parser = Parser()
    add_arguments(parser)
    assert {flag for flag in ELSEWHERE.values() if flag} <= {*parser._option_string_actions}
    assert not {*ELSEWHERE} & {*parser._option_string_actions}


def test_an_empty_model_path_is_not_the_embedded_model() -> None:
    """``--model-path "$MODEL"``, where that is not set."""
    with pytest.raises(ValueError, match="--model-path is ''; leave it out for the embedded"):
        parse("--model-path", "")
    assert parse().model.model_path == ""


@pytest.mark.parametrize("value", ["", "  ", "\n", ","])
@pytest.mark.parametrize(
    "flag",
    ["host", "api-key", "admin-api-key", "api-keys-file", "allowed-hosts", "allowed-media-domains",
     "ssl-certfile", "ssl-ca-certs", "served-model-name"],
)  # fmt: skip
def test_a_flag_that_guards_is_never_empty(flag: str, value: str) -> None:
    """``--api-key "$KEY"`` without that variable would open the server to every client."""
    with pytest.raises(ValueError, match=f"--{flag} is .*; give "):
        parse(f"--{flag}", value)
    assert parse().settings()[flag.replace("-", "_")] in ("", "127.0.0.1")


def test_keys_of_the_environment_are_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", " ", "\n"):
        monkeypatch.setenv("SGLANG_API_KEY", value)
        with pytest.raises(ValueError, match=r"SGLANG_API_KEY is set and is .*unset it"):
            keys_from_environment(argparse.Namespace(), "api_key")
    given = argparse.Namespace(api_key="k")
    keys_from_environment(given, "api_key")  # a given key is not looked up
    monkeypatch.setenv("SGLANG_API_KEY", "quiet")
    keys_from_environment(found := argparse.Namespace(), "api_key", "admin_api_key")
    assert (given.api_key, vars(found)) == ("k", {"api_key": "quiet"})


def test_names_of_a_list_may_stand_in_one_text() -> None:
    def names(*words: str) -> tuple[str, ...]:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        found = from_arguments(parser.parse_args(["--disable-fused-kernels", *words]))
        return found.model.disable_fused_kernels

    assert names("sampling,moe") == names("sampling", "moe") == ("sampling", "moe")
    assert names("moe,") == ("moe",)
    assert Config.of(disable_fused_kernels="append, decode").model.disable_fused_kernels == (
        "append", "decode",
    )  # fmt: skip
    assert Config.of().model.disable_fused_kernels == ()


@pytest.mark.parametrize("value", ["moe,fast", ["fast"], "fast"])
def test_an_unknown_name_of_a_list_is_refused_with_known_ones(value: object) -> None:
    message = "--disable-fused-kernels names 'fast'; known are .*sampling, moe"
    with pytest.raises(ValueError, match=message):
        Config.of(disable_fused_kernels=value)
    with pytest.raises(TypeError, match="it must be"):
        Config.of(disable_fused_kernels=[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hicache_storage_dir": "kv", "hicache_storage_size": 1.0}, "add --enable-hierarchical"),
        ({"hicache_storage_dir": "kv", "enable_hierarchical_cache": True}, "a size above 0"),
        ({"hicache_storage_size": 1.0, "enable_hierarchical_cache": True}, "needs a directory"),
        ({"hicache_storage_size": -1.0}, "from 0 to 1e9"),
    ],
)
def test_kv_on_disk_needs_host_memory_a_directory_and_a_size(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Config.of(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp_size": 0}, "--tp-size is 0; it must be at least 1"),
        ({"pp_size": -1}, "--pp-size is -1; it must be at least 1"),
        ({"pp_size": 2, "assigned_layers": "9"}, "'9'; with --pp-size 2 it must be 2 numbers"),
        ({"pp_size": 2, "assigned_layers": "9,0"}, "must be 2 numbers, each at least 1"),
        ({"pp_size": 2, "assigned_layers": "9;7"}, "'9;7'; give whole numbers with commas"),
        ({"node_rank": 1}, "--node-rank is 1; with --nnodes 1 it must be from 0 to 0"),
        ({"nnodes": 2, "tp_size": 3, "dist_init_addr": "a:1"}, "--nnodes is 2 and there are 3"),
        ({"nnodes": 2, "tp_size": 2}, "--dist-init-addr is ''; with --nnodes 2 it must be"),
        ({"nnodes": 2, "tp_size": 2, "dist_init_addr": "a:99999"}, "must be HOST:PORT of node 0"),
    ],
)
def test_sizes_of_ranks_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Config.of(**settings)


def test_other_spellings_of_sizes_are_flags() -> None:
    words = ("--tp", "2", "--pipeline-parallel-size", "4", "--assigned-layers", "3, 1,2,2")
    parallel = parse(*words).parallel
    assert (parallel.tp_size, parallel.pp_size, parallel.ranks) == (2, 4, 8)
    assert parallel.layer_counts == (3, 1, 2, 2)
    assert ParallelConfig(dist_init_addr="[::1]:80").address == ("::1", 80)
