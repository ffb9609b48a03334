"""Flags of upstream SGLang that are no settings here, and what becomes of each.

meant           a spelling, or a value, of a setting that is here
without effect  accepted with a warning: it would change no answer
absent          refused: the feature it asks for is not here

The same names, with underscores, may be given to ``sglang.Engine`` and ``sglang.Runtime``. In the
tables a flag is written ``name`` for a switch, ``name=`` where it takes a value and ``name*`` where
it takes several; ``name=1`` is inert with the value 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SPELLINGS: Mapping[str, str] = {
    "model": "model_path",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "speculative_draft_model": "speculative_draft_model_path",
}
"""Other names of settings."""

_BY_DEVICE = "kernels are chosen by the device"
_DEVICE_KERNELS = (
    "torch_native", "flex_attention", "fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla",
    "trtllm_mha", "dual_chunk_flash_attn", "dsa", "nsa", "intel_amx",
)  # fmt: skip
_KNOWN = "the checkpoint says how it is stored"
VALUES: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "dtype": {"half": ("float16", ""), "float": ("float32", "")},
    "kv_cache_dtype": {
        "fp8_e4m3": ("fp8", ""),
        "fp8_e5m2": ("fp8", "of the two formats of 8 bits e4m3 is here"),
        "bf16": ("auto", "the cache has the weights' type"),
        "bfloat16": ("auto", "the cache has the weights' type"),
    },
    "load_format": {
        "gguf": ("auto", ""),
        "bitsandbytes": ("auto", _KNOWN),
        "layered": ("auto", "weights are read layer by layer"),
        "fastsafetensors": ("auto", "safetensors are read in one way"),
    },
    "quantization": {
        "awq_marlin": ("awq", ""),
        "gptq_marlin": ("gptq", ""),
        "marlin": ("gptq", ""),
        "w8a8_int8": ("compressed-tensors", ""),
        "w8a8_fp8": ("compressed-tensors", ""),
    },
    "attention_backend": dict.fromkeys(_DEVICE_KERNELS, ("auto", _BY_DEVICE)),
    "fp8_gemm_backend": dict.fromkeys(
        ("deep_gemm", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_deepgemm", "cutlass",
         "aiter"), ("auto", _BY_DEVICE),
    ),
    "grammar_backend": {"xgrammar": ("auto", "the same constraints are enforced by others")},
    "tool_call_parser": {"qwen25": ("qwen", "")},
    "speculative_algorithm": {"standalone": ("draft", "")},
    "chat_template": {
        "chatml-llava": ("chatml", ""), "qwen2-vl": ("chatml", ""), "qwen": ("chatml", ""),
        "gemma-it": ("gemma", ""), "llama-2-chat": ("llama-2", ""),
        "llama-3-instruct": ("llama-3", ""), "llama_3_vision": ("llama-3", ""),
        "llava_llama_3": ("llama-3", ""), "deepseek-v3": ("deepseek", ""),
        "vicuna_v1.1": ("vicuna", ""),
    },
}  # fmt: skip
"""Of settings: upstream's values, the one meant here, and what there is to warn of."""

_EAGLE = "speculation by a model trained on another's hidden states"
_PICKLES = "reading pickled weights, which may run code,"
ABSENT_VALUES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "speculative_algorithm": dict.fromkeys(
        ("eagle", "eagle3", "nextn", "dflash"), (_EAGLE, "use ngram, or draft and a smaller model")
    ),
    "attention_backend": {
        "ascend": ("attention on NPUs", "use auto"),
        "aiter": ("attention on AMD GPUs", "use auto"),
        "wave": ("attention on AMD GPUs", "use auto"),
    },
    "load_format": dict.fromkeys(("pt", "npcache"), (_PICKLES, "convert them to safetensors")),
    "kv_cache_dtype": {"fp4_e2m1": ("a KV cache of 4 bits", "use fp8")},
}  # fmt: skip
"""Of settings: values that ask for an absent feature; the feature, and what to do."""

MEANS: Mapping[str, tuple[str, Mapping[Any, Any]]] = {
    "enable_priority_scheduling": ("schedule_policy", {True: "priority"}),
    "disable_regex_jump_forward": ("disable_jump_forward", {True: True}),
    "stream_output": ("incremental_streaming_output", {True: True}),
    "torchao_config": (
        "quantization",
        {"int8dq": "int8", "int8wo": "int8wo", "": "none"}
        | dict.fromkeys(("int4wo-32", "int4wo-64", "int4wo-128", "int4wo-256"), "int4"),
    ),
}
"""Flags that are values of a setting here."""


class FlagRow(NamedTuple):
    """Flags with one fate, and why: ``what`` is the feature of an absent one."""

    what: str
    flags: str
    advice: str = ""


WITHOUT_EFFECT = (
    FlagRow("always on", "is-embedding enable-multimodal enable-cache-report enable-mixed-chunk "
        "enable-overlap-schedule enable-return-hidden-states"),
    FlagRow("architectures are this package's own, and no code of a checkpoint is run",
        "trust-remote-code model-impl="),
    FlagRow("a tokenizer is always there, and texts come beside output_ids", "skip-tokenizer-init"),
    FlagRow(_BY_DEVICE,
        "prefill-attention-backend= decode-attention-backend= mm-attention-backend= "
        "sampling-backend= lora-backend= fp4-gemm-backend= moe-runner-backend= "
        "dsa-prefill-backend= dsa-decode-backend= nsa-prefill-backend= nsa-decode-backend= "
        "nsa-prefill= nsa-decode= speculative-attention-mode= max-lora-chunk-size= "
        "speculative-draft-attention-backend= speculative-moe-runner-backend= "
        "speculative-moe-a2a-backend= triton-attention-reduce-in-fp32 "
        "triton-attention-num-kv-splits= triton-attention-split-tile-size= "
        "flashinfer-mla-disable-ragged disable-flashinfer-autotune disable-flashinfer "
        "disable-flashinfer-sampling enable-flashinfer-mla disable-mla "
        "disable-shared-experts-fusion disable-chunked-prefix-cache enable-fused-qk-norm-rope "
        "flashinfer-mxfp4-moe-precision= enable-flashinfer-allreduce-fusion "
        "enable-aiter-allreduce-fusion disable-flashinfer-cutlass-moe-fp4-allgather "
        "enable-flashinfer-cutlass-moe enable-flashinfer-cutedsl-moe enable-flashinfer-trtllm-moe "
        "enable-flashinfer-mxfp4-moe enable-triton-kernel-moe"),
    FlagRow("passes are compiled and captured in one way",
        "enable-torch-compile torch-compile-max-bs= enable-torch-compile-debug-mode "
        "disable-cuda-graph-padding cuda-graph-bs* enable-profile-cuda-graph enable-cudagraph-gc "
        "enable-piecewise-cuda-graph disable-piecewise-cuda-graph enforce-piecewise-cuda-graph "
        "piecewise-cuda-graph-tokens* piecewise-cuda-graph-compiler= "
        "piecewise-cuda-graph-max-tokens= cuda-graph-max-bs-decode= cuda-graph-max-bs-prefill= "
        "cuda-graph-backend-decode= cuda-graph-backend-prefill= enable-layerwise-nvtx-marker"),
    FlagRow("the scheduler needs no such setting; see --chunked-prefill-size, --max-overtakes",
        "max-prefill-tokens= prefill-max-requests= schedule-conservativeness= "
        "enable-dynamic-chunking num-continuous-decode-steps= scheduler-recv-interval= "
        "num-reserved-decode-tokens= enable-prefill-delayer prefill-delayer-max-delay-passes= "
        "prefill-delayer-token-usage-low-watermark= prefill-delayer-queue-min-ratio= "
        "prefill-delayer-max-delay-ms= prefill-delayer-forward-passes-buckets* "
        "prefill-delayer-wait-seconds-buckets* enable-two-batch-overlap "
        "enable-single-batch-overlap tbo-token-distribution-threshold= swa-full-tokens-ratio= "
        "disable-hybrid-swa-memory hybrid-kvcache-ratio= radix-eviction-policy= "
        "lora-eviction-policy= lora-drain-wait-threshold= enable-lora-overlap-loading "
        "sleep-on-idle load-watch-interval="),
    FlagRow("ranks meet in one way; see --dist-init-addr",
        "nccl-port= nccl-init-addr= disable-custom-all-reduce "
        "enable-p2p-check enable-nccl-nvls enable-symm-mem enable-torch-symm-mem enable-mscclpp "
        "load-balance-method= gpu-id-step= pp-max-micro-batch-size= pp-async-batch-depth= "
        "enable-attn-tp-input-scattered enable-quant-communications moe-dense-tp-size= "
        "prefill-round-robin-balance deepep-mode= deepep-dispatcher-output-dtype= numa-node*"),
    FlagRow("texts become tokens, and tokens texts, in one way",
        "tokenizer-mode= tokenizer-worker-num= enable-tokenizer-batch-encode "
        "disable-tokenizer-batch-decode enable-dynamic-batch-tokenizer "
        "dynamic-batch-tokenizer-batch-size= dynamic-batch-tokenizer-batch-timeout="),
    FlagRow("logs and metrics are set by --log-level, --log-format and --log-requests",
        "log-level-http= log-requests-format= uvicorn-access-log-exclude-prefixes* "
        "show-time-cost enable-metrics-for-all-schedulers enable-mfu-metrics "
        "tokenizer-metrics-custom-labels-header= tokenizer-metrics-allowed-custom-labels* "
        "bucket-time-to-first-token* bucket-inter-token-latency* bucket-e2e-request-latency* "
        "collect-tokens-histogram prompt-tokens-buckets* generation-tokens-buckets* "
        "gc-warning-threshold-secs= decode-log-interval= enable-request-time-stats-logging "
        "soft-watchdog-timeout= enable-nan-detection crash-on-nan= "
        "weight-version="),
    FlagRow("images and videos are processed in one way",
        "disable-fast-image-processor keep-mm-feature-on-device mm-max-concurrent-calls= "
        "mm-per-request-timeout= enable-broadcast-mm-inputs-process mm-enable-dp-encoder "
        "enable-prefix-mm-cache"),
    FlagRow("weights are read in one way", "weight-loader-disable-mmap "
        "weight-loader-prefetch-checkpoints weight-loader-prefetch-num-threads="),
    FlagRow("drafts change the speed alone; see --speculative-num-draft-tokens",
        "speculative-num-steps= speculative-eagle-topk= speculative-draft-model-revision= "
        "speculative-draft-load-format= speculative-draft-model-quantization= "
        "speculative-ngram-min-bfs-breadth= speculative-ngram-max-bfs-breadth= "
        "speculative-ngram-match-type= speculative-ngram-max-trie-depth= "
        "speculative-ngram-capacity= speculative-ngram-min-match-window-size= "
        "speculative-ngram-max-match-window-size= speculative-ngram-branch-length="),
    FlagRow("nothing here uses it",
        "warmups= file-storage-path= disable-outlines-disk-cache disable-disk-cache"),
)  # fmt: skip

ABSENT = (
    FlagRow("attention by data parallelism within one engine", "enable-dp-attention "
        "enable-dp-lm-head", "use --dp-size for several engines"),
    FlagRow("expert parallelism",
        "ep=1 ep-size=1 expert-parallel-size=1 moe-a2a-backend=none ep-num-redundant-experts=0 "
        "ep-dispatch-algorithm= init-expert-location=trivial enable-eplb eplb-algorithm= "
        "eplb-rebalance-num-iterations= eplb-rebalance-layers-per-chunk= "
        "eplb-min-rebalancing-utilization-threshold= elastic-ep-backend=none "
        "enable-elastic-expert-backup elastic-ep-rejoin mooncake-ib-device= "
        "enable-deepep-waterfill deepep-config= enable-fused-grouped-gemm-combine "
        "enable-ep-moe enable-deepep-moe"),
    FlagRow("context parallelism", "attn-cp-size=1 attention-context-parallel-size=1 moe-dp-size=1 "
        "moe-data-parallel-size=1 enable-dsa-prefill-context-parallel "
        "enable-nsa-prefill-context-parallel dsa-prefill-cp-mode= nsa-prefill-cp-mode="),
    FlagRow("disaggregated serving", "disaggregation-mode=null disaggregation-transfer-backend= "
        "disaggregation-bootstrap-port= disaggregation-ib-device= "
        "disaggregation-decode-enable-offload-kvcache disaggregation-decode-polling-interval= "
        "encoder-only language-only encoder-transfer-backend= encoder-urls* "
        "enable-mm-global-cache enable-pdmux pdmux-config-path= sm-group-num="),
    FlagRow("KV in another store, or in other machines' memory",
        "hicache-write-policy= hicache-io-backend= hicache-mem-layout= hicache-storage-backend= "
        "hicache-storage-prefetch-policy= hicache-storage-backend-extra-config= enable-lmcache "
        "hierarchical-sparse-attention-extra-config=",
        "for KV on disk see --hicache-storage-dir"),
    FlagRow("offloading of weights",
        "cpu-offload-gb=0 offload-group-size= offload-num-in-group= offload-prefetch-step= "
        "offload-mode= kt-weight-path= kt-method= kt-cpuinfer= kt-threadpool-count= "
        "kt-num-gpu-experts= kt-max-deferred-experts-per-token="),
    FlagRow("giving memory back while serving", "enable-memory-saver enable-weights-cpu-backup "
        "enable-draft-weights-cpu-backup"),
    FlagRow(_EAGLE,
        "speculative-token-map= enable-multi-layer-eagle"),
    FlagRow("accepting drafts that change the distribution",
        "speculative-accept-threshold-single=1.0 speculative-accept-threshold-acc=1.0"),
    FlagRow("a diffusion model", "dllm-algorithm= dllm-algorithm-config="),
    FlagRow("a state-space model", "max-mamba-cache-size= mamba-ssm-dtype= "
        "mamba-full-memory-ratio= mamba-scheduler-strategy= mamba-track-interval="),
    FlagRow("quantising a model while it is loaded, by ModelOpt or with tables",
        "modelopt-quant= modelopt-checkpoint-restore-path= modelopt-checkpoint-save-path= "
        "modelopt-export-path= quantize-and-serve rl-quant-profile= quantization-param-path=",
        "see --quantization"),
    FlagRow("another precision of single layers", "enable-fp32-lm-head "
        "enable-precise-embedding-interpolation rl-on-policy-target="),
    FlagRow("batch-invariant arithmetic on a GPU", "enable-deterministic-inference",
        "on a CPU with native kernels it is always so, without a flag"),
    FlagRow("a custom logit processor", "enable-custom-logit-processor"),
    FlagRow("reporting which experts were taken", "enable-return-routed-experts "
        "expert-distribution-recorder-mode= expert-distribution-recorder-buffer-size= "
        "enable-expert-distribution-metrics"),
    FlagRow("truncation of prompts", "allow-auto-truncate"),
    FlagRow("scoring of several items in one prompt", "multi-item-scoring-delimiter="),
    FlagRow("sparse attention by a table of channels", "enable-double-sparsity "
        "ds-channel-config-path= ds-heavy-channel-num= ds-heavy-token-num= "
        "ds-heavy-channel-type= ds-sparse-decode-threshold="),
    FlagRow("gRPC, or HTTP/2", "grpc-mode enable-http2"),
    FlagRow("a path before all routes", "fastapi-root-path="),
    FlagRow("a configuration file", "config="),
    FlagRow("changing the model's configuration", "json-model-override-args={} "
        "model-loader-extra-config={} mm-process-config={} decrypted-config-file= "
        "decrypted-draft-config-file="),
    FlagRow("a limit for each medium", "limit-mm-data-per-request=", "see --max-media-per-prompt"),
    FlagRow("defaults of sampling parameters by the model",
        "sampling-defaults=openai preferred-sampling-params="),
    FlagRow("other templates by name", "hf-chat-template-name= completion-template=",
        "give --chat-template"),
    FlagRow("a tool server", "tool-server="),
    FlagRow("priorities by other rules", "abort-on-priority-when-disabled "
        "schedule-low-priority-values-first priority-scheduling-preemption-threshold="),
    FlagRow("a directory for downloads", "download-dir=", "set HF_HOME"),
    FlagRow("deleting the checkpoint", "delete-ckpt-after-loading"),
    FlagRow("verifying checksums of weights", "model-checksum*"),
    FlagRow("weights from another process", "checkpoint-engine-wait-weights-before-ready "
        "custom-weight-loader* remote-instance-weight-loader-seed-instance-ip= "
        "remote-instance-weight-loader-seed-instance-service-port= "
        "remote-instance-weight-loader-send-weights-group-ports* "
        "remote-instance-weight-loader-backend= "
        "remote-instance-weight-loader-start-seed-via-transfer-engine"),
    FlagRow("logs of requests in files", "log-requests-target*stdout export-metrics-to-file "
        "export-metrics-to-file-dir="),
    FlagRow("tracing over gRPC", "enable-trace", "give --otlp-traces-endpoint an http URL"),
    FlagRow("hooks and dumps inside the model", "forward-hooks= debug-tensor-dump-output-folder= "
        "debug-tensor-dump-layers* debug-tensor-dump-input-file= debug-tensor-dump-inject= "
        "msprobe-dump-config= custom-sigquit-handler="),
)  # fmt: skip
