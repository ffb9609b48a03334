"""Quality of quantised weights and KV caches: the log-likelihood of text the embedded model has not
seen (`python -m benchmark.quantization`).

The text is of the kind that the model was trained for, from another seed and with held-out words.
Each answer is scored token by token after its prompt, as it stands: no sampling, so one run is
exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import sglang

from benchmark.harness.command import command_parser
from benchmark.harness.records import append
from tools.train_tiny.evaluate import questions

SETTINGS = (
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    {"dtype": "bfloat16", "quantization": "int8wo"},
    {"dtype": "bfloat16", "quantization": "int8"},
    {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
    {"dtype": "bfloat16", "quantization": "int4"},
)


@dataclass(frozen=True)
class Text:
    """Token ids, and where the part begins whose likelihood counts."""

    tokens: list[int]
    start: int


def held_out(tokenizer: Any, count: int, seed: int) -> list[Text]:
    out = []
    for question in questions(seed, count, [512]):
        start = len(tokenizer.encode(question.prompt, add_special_tokens=False))
        tokens = list(
            tokenizer.encode(question.prompt + question.expected, add_special_tokens=False)
        )
        if len(tokens) > start:
            out.append(Text(tokens, start))
    random.Random(seed).shuffle(out)
    return out


def likelihood(texts: list[Text], **settings: Any) -> list[float]:
    """Natural logarithm of every counted token's probability."""
    with sglang.Engine(**settings) as engine:
        answers = engine.generate(
            input_ids=[text.tokens for text in texts],
            sampling_params={"max_new_tokens": 1, "temperature": 0.0},
            return_logprob=True,
            logprob_start_len=[text.start - 1 for text in texts],
        )
    out = []
    for text, answer in zip(texts, answers):
        scored = answer["meta_info"]["input_token_logprobs"]
        out += [value for value, *_ in scored[-(len(text.tokens) - text.start) :]]
    return out


def main() -> int:
    parser = command_parser("benchmark.quantization", __doc__)
    parser.add_argument("--count", type=int, default=8, help="texts of each job (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="of the texts (default: 1)")
    parser.add_argument(
        "--limit", type=float, default=0.05,
        help="nats a token that int8 may lose before the exit status is 1 (default: 0.05)",
    )  # fmt: skip
    parser.add_argument("--output-file", help="append one JSON line a setting")
    arguments = parser.parse_args()
    with sglang.Engine() as engine:
        texts = held_out(engine.get_tokenizer(), arguments.count, arguments.seed)
    base: list[float] = []
    failed = False
    print(f"{len(texts)} held-out answers")
    print(f"{'weights':10} {'quantised':9} {'KV':5} {'nats/token':>10} {'change':>8} {'worst':>8}")
    for settings in SETTINGS:
        values = likelihood(texts, **settings)
        base = base or values
        mean = sum(values) / len(values)
        change = mean - sum(base) / len(base)
        worst = min(a - b for a, b in zip(values, base))
        names = [settings.get(key, "-") for key in ("dtype", "quantization", "kv_cache_dtype")]
        print(
            f"{names[0]:10} {names[1]:9} {names[2]:5} {mean:10.4f} {change:+8.4f} {worst:+8.3f}",
            flush=True,
        )
        if settings.get("quantization") != "int4" and change < -arguments.limit:
            failed = True
        if arguments.output_file:
            record = {**settings, "tokens": len(values), "mean": mean, "change": change}
            append(arguments.output_file, record)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
