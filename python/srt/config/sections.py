"""The sections of a Config: its settings, their meaning and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "priority", "app", "attained")
PREFILL_BUDGETS = ("auto", "fixed", "sarathi", "throttle", "balance", "turns")
PARK_POLICIES = (
    "priced", "none", "discard", "preserve", "swap", "heuristic", "min-waste", "ttl",
    "eager",
)  # fmt: skip
LOAD_FORMATS = ("auto", "safetensors", "dummy")
ATTENTION_BACKENDS = ("auto", "native", "triton", "flashinfer", "flashinfer-fa3")
PUBLISHED = ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gguf", "gptq", "mxfp4")
QUANTIZATIONS = ("none", "int8", "int8wo", "int4", *PUBLISHED)
LAYER_KERNELS = ("rotate_append", "add_rms_norm", "gate")
FUSED_KERNELS = (*LAYER_KERNELS, "sampling", "moe", "cascade", "decode", "append")
FP8_GEMM_BACKENDS = ("auto", "none", "torch", "triton")
CPU_KERNELS = ("auto", "native", "torch")
KV_DTYPES = ("auto", "int8", "fp8")
DTYPES = ("auto", "float32", "bfloat16", "float16")
GRAMMAR_BACKENDS = ("auto", "fsm", "interegular", "llguidance", "outlines")
JUMP_FORWARD = ("exact", "string", "off")
SPECULATIVE_ALGORITHMS = ("auto", "none", "draft", "ngram")
JSON_WHITESPACE = "[ ]?"  # between two tokens of JSON, of a model that does not say
MAX_DRAFTS = 64  # a pass and request
POOLINGS = ("last", "mean")
TOOL_CALL_PARSERS = ("auto", "hermes", "qwen", "llama3", "mistral", "pythonic", "tiny")
REASONING_PARSERS = (
    "auto", "none", "deepseek-r1", "deepseek-v3", "glm45", "kimi", "kimi_k2", "minimax", "mistral",
    "qwen3", "qwen3-thinking", "seed-oss", "step3",
)  # fmt: skip
MAX_NAME = 256  # characters of an adapter's name
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


def flag(
    default: Any,
    help: str,
    *,
    choices: Sequence[Any] | None = None,
    type: Any = None,
) -> Any:
    """A dataclass field that is also a command-line flag."""
    meta = {"help": help, "choices": choices, "type": type}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class ModelConfig:
    """The model: its weights, their format and the device."""

    model_path: str = flag(
        "", "local directory, GGUF file or hub id; omitted: the embedded sglang-tiny"
    )
    tokenizer_path: str = flag("", "directory or hub id of the tokenizer, if not the model's")
    revision: str = flag("", "hub revision: a branch, tag or commit")
    load_format: str = flag("auto", "source of the weights; dummy: random", choices=LOAD_FORMATS)
    dtype: str = flag("auto", "dtype of the weights; auto: the checkpoint's", choices=DTYPES)
    quantization: str = flag(
        "none", "quantize the weights at loading, on a CPU; int8: weights and activations; "
        "int8wo, int4: weights only; the other names are formats of checkpoints, which are "
        "recognized without this flag", choices=QUANTIZATIONS,
    )  # fmt: skip
    cpu_kernels: str = flag(
        "auto", "kernels on a CPU; auto: sgl-kernel's native ones if they can run, else torch's",
        choices=CPU_KERNELS,
    )  # fmt: skip
    device: str = flag("auto", "device of the model; auto: cuda if there is a GPU, else cpu")
    context_length: int = flag(0, "longest sequence in tokens; 0: the model's", type=int)
    random_seed: int = flag(0, "seed for dummy weights and for requests without one", type=int)
    attention_backend: str = flag(
        "auto", "attention implementation; auto: the fastest that runs on the device",
        choices=ATTENTION_BACKENDS,
    )  # fmt: skip
    fp8_gemm_backend: str = flag(
        "auto", "float8 products for a float8 checkpoint; auto: on a GPU that supports them; "
        "none: convert the weights to --dtype", choices=FP8_GEMM_BACKENDS,
    )  # fmt: skip
    disable_cuda_graph: bool = flag(False, "launch each kernel of a decode pass separately")
    cuda_graph_max_bs: int = flag(
        256, "rows of the largest decode pass that is captured as a CUDA graph", type=int
    )
    disable_fused_kernels: tuple[str, ...] = flag(
        (), "on a GPU: replace these fused kernels by torch's operations or more general kernels, "
        "to find a faulty one", choices=FUSED_KERNELS,
    )  # fmt: skip
    threads: int = flag(0, "CPU threads for tensor work; 0: torch's choice", type=int)


@dataclass(frozen=True)
class MemoryConfig:
    """The KV cache."""

    page_size: int = flag(1, "tokens in a page of KV", type=int)
    kv_cache_dtype: str = flag(
        "auto",
        "dtype of the KV; auto: the weights'; int8 (CPU only), fp8 (e4m3): half of bfloat16",
        choices=KV_DTYPES,
    )
    max_total_tokens: int = flag(0, "KV cache size in tokens; 0: what the memory allows", type=int)
    mem_fraction_static: float = flag(
        0.0, "share of memory for weights and KV; 0: 0.85 on a GPU, 0.3 on a CPU", type=float
    )
    disable_radix_cache: bool = flag(False, "keep no KV between requests")
    enable_hierarchical_cache: bool = flag(
        False, "keep KV that the device has no room for in host memory"
    )
    hicache_ratio: float = flag(
        2.0, "host memory for KV, as a multiple of the device's KV cache", type=float
    )
    hicache_size: float = flag(0.0, "host memory for KV in GB; 0: by --hicache-ratio", type=float)
    hicache_storage_dir: str = flag(
        "", "directory, only for this server, for KV kept over restarts; needs host memory"
    )
    hicache_storage_size: float = flag(0.0, "GB of KV in --hicache-storage-dir", type=float)

    def verify(self) -> None:
        """Raise ValueError for settings that exclude each other."""
        if self.enable_hierarchical_cache and self.disable_radix_cache:
            raise ValueError(
                "--enable-hierarchical-cache keeps KV between requests and --disable-radix-cache "
                "keeps none; leave one of them out."
            )
        if self.hicache_storage_dir and not self.enable_hierarchical_cache:
            raise ValueError(
                "--hicache-storage-dir keeps what host memory holds; add "
                "--enable-hierarchical-cache."
            )
        if bool(self.hicache_storage_dir) != bool(self.hicache_storage_size):
            raise ValueError(
                f"--hicache-storage-dir is {self.hicache_storage_dir!r} and "
                f"--hicache-storage-size is {self.hicache_storage_size:g}; KV on disk needs a "
                "directory and a size above 0."
            )


@dataclass(frozen=True)
class ScheduleConfig:
    """Scheduling policy and limits."""

    schedule_policy: str = flag(
        "lpm",
        "order of waiting requests; app: a program's calls wait since the program's arrival; "
        "attained: programs that were served least go first",
        choices=POLICIES,
    )
    max_running_requests: int = flag(256, "most requests computed at once", type=int)
    max_queued_requests: int = flag(4096, "waiting requests; further ones get a 429", type=int)
    chunked_prefill_size: int = flag(2048, "most prompt tokens in a pass; -1: unlimited", type=int)
    prefill_budget: str = flag(
        "auto",
        "rule for the prompt tokens of a pass; throttle: by waiting tokens and free memory, with "
        "decodes spread over the stages (gLLM); balance: the same in predicted time; sarathi: one "
        "limit for prompts and decodes; turns: prompts and decodes in turns; auto: fixed, or "
        "balance with several stages",
        choices=PREFILL_BUDGETS,
    )
    max_overtakes: int = flag(
        128, "later requests that may overtake a waiting one before it goes first", type=int
    )
    latency_target_ms: float = flag(
        40.0,
        "longest predicted pass, in milliseconds, while a latency-sensitive call without a target "
        "of its own runs; requests that would exceed it wait",
        type=float,
    )
    park_policy: str = flag(
        "priced",
        "what happens to the KV of generations that wait for a tool; priced: KV that saves the "
        "least time is evicted first; none: least recently used",
        choices=PARK_POLICIES,
    )
    disable_overlap_schedule: bool = flag(
        False,
        "plan a pass only after the previous one has ended; on a CPU planning overlaps only if "
        "--threads leaves a processor free",
    )


@dataclass(frozen=True)
class GrammarConfig:
    """Constrained decoding."""

    grammar_backend: str = flag(
        "auto",
        "library that enforces constraints; auto: compressed FSM for regexes, llguidance otherwise",
        choices=GRAMMAR_BACKENDS,
    )
    jump_forward: str = flag(
        "exact",
        "append forced text in one pass; string: retokenized, unverified, as in the SGLang paper",
        choices=JUMP_FORWARD,
    )
    disable_jump_forward: bool = flag(False, "the same as --jump-forward off")
    constrained_json_whitespace_pattern: str = flag(
        "auto",
        "regex of the white space between two tokens of JSON; '': none; auto: the "
        f"model's json_whitespace_pattern in generation_config.json, else '{JSON_WHITESPACE}'",
    )
    constrained_json_disable_any_whitespace: bool = flag(
        False, "JSON is compact: the same as an empty --constrained-json-whitespace-pattern"
    )

    def json_whitespace(self, model: str | None = None) -> str:
        """Return the white space pattern of JSON for requests that name none. ``model``: the
        pattern that the model's files give, None if they give none."""
        if self.constrained_json_disable_any_whitespace:
            return ""
        if self.constrained_json_whitespace_pattern != "auto":
            return self.constrained_json_whitespace_pattern
        return JSON_WHITESPACE if model is None else model

    def verify(self) -> None:
        pattern = self.constrained_json_whitespace_pattern
        if self.constrained_json_disable_any_whitespace and pattern not in ("auto", ""):
            raise ValueError(
                f"--constrained-json-whitespace-pattern is {pattern!r} and "
                "--constrained-json-disable-any-whitespace allows none; give one of them"
            )

    @property
    def jumps(self) -> str:
        """Mode of jump-forward: "exact", "string" or "off"."""
        return "off" if self.disable_jump_forward else self.jump_forward


@dataclass(frozen=True)
class SpeculationConfig:
    """Speculative decoding: fewer forward passes, the same text."""

    speculative_algorithm: str = flag(
        "auto", "algorithm of requests that name none; auto: draft with a draft model, else none",
        choices=SPECULATIVE_ALGORITHMS, type=str.lower,
    )  # fmt: skip
    speculative_draft_model_path: str = flag(
        "", "directory or hub id of a smaller model with the same tokenizer"
    )
    speculative_num_draft_tokens: int = flag(16, "most drafts of a request in a pass", type=int)

    @property
    def algorithm(self) -> str:
        """ "none", "ngram" or "draft"."""
        if self.speculative_algorithm == "auto":
            return "draft" if self.speculative_draft_model_path else "none"
        return self.speculative_algorithm

    def verify(self) -> None:
        most = self.speculative_num_draft_tokens
        if not 1 <= most <= MAX_DRAFTS:
            raise ValueError(
                f"--speculative-num-draft-tokens is {most}; it must be between 1 and {MAX_DRAFTS}"
            )
        if self.algorithm == "draft" and not self.speculative_draft_model_path:
            raise ValueError(
                "--speculative-algorithm is draft and there is no draft model; give one with "
                "--speculative-draft-model-path, or use ngram"
            )


@dataclass(frozen=True)
class ServerConfig:
    """HTTP."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(30000, "port to listen on", type=int)
    api_key: str = flag(
        "", "key that every route requires; safer in the environment, as SGLANG_API_KEY"
    )
    served_model_name: str = flag("", "name shown by /v1/models; default: the model path")
    chat_template: str = flag(
        "", "jinja2 chat template, if not the model's own: a path, or the name of a built-in one"
    )
    tool_call_parser: str = flag(
        "auto", "format of the model's tool calls; auto: by its chat template or name",
        choices=TOOL_CALL_PARSERS,
    )  # fmt: skip
    reasoning_parser: str = flag(
        "auto", "marks around the model's reasoning; auto: by its chat template",
        choices=REASONING_PARSERS,
    )  # fmt: skip
    embedding_pooling: str = flag(
        "last", "how /v1/embeddings makes one vector of the states of all tokens", choices=POOLINGS
    )
    stream_interval: int = flag(1, "tokens between two stream chunks", type=int)
    incremental_streaming_output: bool = flag(
        False, "streams of /generate send only new text, unless a request says otherwise"
    )
    log_level: str = flag("info", "least severe messages logged", choices=LOG_LEVELS)
    log_requests: bool = flag(False, "log one line a request")
    skip_server_warmup: bool = flag(
        False, "report ready before a first forward pass, and on a GPU before kernels are compiled"
    )
    enable_metrics: bool = flag(True, "accepted for compatibility: /metrics is always served")
    max_body_bytes: int = flag(16 << 20, "largest request body", type=int)
    max_tokenized_bytes: int = flag(
        4 << 20, "bytes of long texts tokenized at once; a byte may take 420 bytes of memory",
        type=int,
    )  # fmt: skip
    response_store_bytes: int = flag(
        64 << 20, "bytes of memory for stored answers of /v1/responses; 0: none is kept", type=int
    )
    max_parked_per_key: int = flag(
        256, "contexts of one API key that wait for a tool; 0: none is parked", type=int
    )
    max_parked_bytes: int = flag(
        64 << 20, "bytes of the server's memory for the parked contexts of one API key", type=int
    )


@dataclass(frozen=True)
class EdgeConfig:
    """Keys, hosts, limits and timeouts of connections."""

    admin_api_key: str = flag(
        "", "key for administration; also SGLANG_ADMIN_API_KEY; default: any key is accepted"
    )
    api_keys_file: str = flag("", "JSON list of keys and their limits, reread on SIGHUP")
    allowed_hosts: str = flag("", "host names of this server, with commas; * for any")
    cors_allow_origins: str = flag("", "CORS: origins whose pages may call, with commas; *: any")
    ssl_certfile: str = flag("", "certificate chain (PEM); with it the server speaks TLS only")
    ssl_keyfile: str = flag("", "private key (PEM) of the certificate, if not in its file")
    ssl_keyfile_password: str = flag("", "password of --ssl-keyfile")
    ssl_ca_certs: str = flag("", "authorities (PEM) that must have signed a client's certificate")
    max_connections: int = flag(8192, "connections open at once", type=int)
    max_header_bytes: int = flag(64 << 10, "request line and headers of one request", type=int)
    header_timeout: float = flag(10.0, "seconds for a request's headers to arrive", type=float)
    body_timeout: float = flag(30.0, "seconds without new bytes of a request's body", type=float)
    keep_alive_timeout: int = flag(
        30, "seconds a connection may wait for its next request", type=int
    )
    stream_write_timeout: float = flag(
        60.0, "seconds in which a client may read nothing of its answer", type=float
    )


@dataclass(frozen=True)
class OperationsConfig:
    """Restarts, logs, metrics and traces."""

    max_engine_restarts: int = flag(
        3, "times in ten minutes that a lost engine is started again; 0: the server ends", type=int
    )
    max_resumes: int = flag(
        1, "times that a request continues on the next engine if its engine is lost; 0: never",
        type=int,
    )  # fmt: skip
    watchdog_timeout: float = flag(
        300.0, "seconds without an answer after which the engine counts as lost (/health says so "
        "at half of them); 0: never",
        type=float,
    )  # fmt: skip
    drain_timeout: float = flag(
        30.0, "seconds that open requests may take after SIGTERM or POST /drain", type=float
    )
    exit_with_parent: int = flag(
        0, "drain and exit when the process of this id is no longer the parent; 0: never", type=int
    )
    crash_dump_folder: str = flag(
        "", "folder to which a lost engine's requests are written; sglang replay runs the files"
    )
    log_format: str = flag("text", "json: one object a line", choices=LOG_FORMATS)
    log_requests_level: int = flag(
        0, "content of a request's log line: 1 parameters, 2 also beginnings of its texts, 3 all",
        choices=(0, 1, 2, 3), type=int,
    )  # fmt: skip
    otlp_traces_endpoint: str = flag(
        "", "URL that OpenTelemetry spans are sent to (OTLP over HTTP); needs the extra otel"
    )


@dataclass(frozen=True)
class ToolboxConfig:
    """The operator's tools, which the server runs for chats."""

    toolbox: str = flag(
        "", "MODULE or MODULE:NAME: a list of functions (by default TOOLS) that models may call; "
        "MODULE is a Python module, or the path of a .py file"
    )  # fmt: skip
    toolbox_timeout: float = flag(
        30.0, "seconds after which a tool call is ended, its process's start included", type=float
    )
    toolbox_processes: int = flag(4, "tool calls that run at once, each in a process", type=int)
    toolbox_max_calls: int = flag(
        8, "most tool calls of a request that gives no max_calls", type=int
    )

    def verify(self) -> None:
        """Raise ValueError for a value out of range."""
        if not 0 < self.toolbox_timeout <= 86400:
            raise ValueError(
                f"--toolbox-timeout is {self.toolbox_timeout}; it must be above 0, at most 86400"
            )
        for name, value, least, most in (
            ("processes", self.toolbox_processes, 1, 256),
            ("max-calls", self.toolbox_max_calls, 1, 128),
        ):
            if not least <= value <= most:
                raise ValueError(f"--toolbox-{name} is {value}; it must be from {least} to {most}")


@dataclass(frozen=True)
class MediaConfig:
    """Images and videos in prompts."""

    max_media_per_prompt: int = flag(32, "images and videos in one prompt", type=int)
    max_media_bytes: int = flag(32 << 20, "most bytes of one encoded image or video", type=int)
    max_image_pixels: int = flag(1 << 26, "most pixels of an image before resizing", type=int)
    max_video_frames: int = flag(64, "most frames taken from one video", type=int)
    media_threads: int = flag(2, "images and videos decoded at once", type=int)
    media_cache_bytes: int = flag(
        256 << 20, "bytes of cached decoded media and hidden states of the vision tower", type=int
    )
    allowed_local_media_path: str = flag(
        "", "directory whose files requests may read; default: none"
    )
    allow_remote_media: bool = flag(False, "fetch images and videos from any public host")
    allowed_media_domains: str = flag(
        "", "only hosts to fetch images and videos from, with commas; list each subdomain"
    )
    media_fetch_timeout: float = flag(10.0, "seconds one fetch may take", type=float)

    def verify(self) -> None:
        """Raise ValueError, naming the flag, its value and its limit."""
        for name in (
            "max_media_bytes", "max_image_pixels", "max_video_frames", "media_threads",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1"
                )
        for name in ("max_media_per_prompt", "media_cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be 0 or more"
                )
        if not 0 < self.media_fetch_timeout < math.inf:
            raise ValueError(
                f"--media-fetch-timeout is {self.media_fetch_timeout}; it must be above 0, and "
                "finite"
            )


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA), one for each request."""

    enable_lora: bool = flag(False, "allow adapters to be loaded; --lora-paths implies it")
    lora_paths: tuple[str, ...] = flag((), "adapters to load, each NAME=PATH, or a PATH alone")
    lora_dir: str = flag(
        "", "directory whose adapters POST /load_lora_adapter may load; default: only those of "
        "--lora-paths",
    )  # fmt: skip
    max_lora_rank: int = flag(64, "largest rank of an adapter", type=int)
    max_loras_per_batch: int = flag(
        32, "adapters that one pass may use, and that a GPU holds at once", type=int
    )
    max_loaded_loras: int = flag(128, "adapters that may be loaded at once", type=int)
    lora_target_modules: tuple[str, ...] = flag(
        (), "modules that adapters may change (q_proj, ...); default: all supported ones"
    )

    @property
    def enabled(self) -> bool:
        return self.enable_lora or bool(self.lora_paths)

    def named(self) -> Iterator[tuple[str, str]]:
        """Name and path of each of ``lora_paths``."""
        for entry in self.lora_paths:
            name, equals, path = entry.partition("=")
            yield (name, path) if equals else (entry, entry)

    def verify(self) -> None:
        """Raise ValueError, naming the flag, its value and its limit."""
        for name in ("max_lora_rank", "max_loras_per_batch", "max_loaded_loras"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1"
                )
        names = [name for name, _ in self.named()]
        for name, path in self.named():
            if not name or len(name) > MAX_NAME or not name.isprintable() or not path:
                raise ValueError(
                    f"--lora-paths has {name!r:.80}={path!r:.80}; give NAME=PATH, the name "
                    f"printable and of at most {MAX_NAME} characters"
                )
            if names.count(name) > 1:
                raise ValueError(f"--lora-paths names {name!r} twice; each needs a name of its own")
        if len(names) > self.max_loaded_loras:
            raise ValueError(
                f"--lora-paths has {len(names)} adapters; at most {self.max_loaded_loras} "
                "(--max-loaded-loras)"
            )
