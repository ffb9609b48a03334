"""Claim: longest prefix match first computes every shared prefix once; under memory pressure the
cache-aware orders compute less than the others.

    python -m benchmark.cache_schedule [--seed 0]

No model and no GPU: the real scheduler and memory count tokens. "tokens" are prompt tokens
computed, "x bound" divides them by the tokens of the prompts' union tree, the least possible.
"""

from __future__ import annotations

from sglang.srt.config.sections import POLICIES

from benchmark.cache_schedule.measure import Result, longest, measure
from benchmark.cache_schedule.workloads import WORKLOADS, lower_bound, workload
from benchmark.harness.command import command_parser

DRAW = 8


def line(memory: str, policy: str, result: Result) -> str:
    return (
        f"  {memory:<22} {policy:<11} {result.computed:>8} {result.excess:>8.3f} "
        f"{result.hit_rate:>7.1%} {result.best_hit_rate:>7.1%} {result.passes:>7} "
        f"{result.retractions:>8}"
    )


def main() -> None:
    parser = command_parser("benchmark.cache_schedule", __doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and their order")
    seed = parser.parse_args().seed
    for name in WORKLOADS:
        prompts = workload(name, seed)
        bound, most = lower_bound(prompts), longest(prompts)
        print(f"\n{name}: {len(prompts)} prompts of {sum(map(len, prompts))} tokens, "
              f"union tree {bound}, longest {most}")  # fmt: skip
        print(f"  {'memory':<22} {'policy':<11} {'tokens':>8} {'x bound':>8} {'hit':>7} "
              f"{'best':>7} {'passes':>7} {'retracts':>8}")  # fmt: skip
        for policy in POLICIES:
            result = measure(prompts, policy, capacity=most, draw=0, running=1)
            print(line(f"{most} (longest), 1 run", policy, result))
        enough = bound + len(prompts) * DRAW
        for memory, label in [
            (enough, f"{enough} (enough)"),
            *((max(bound // part, most + DRAW), f"{max(bound // part, most + DRAW)} (1/{part})")
              for part in (2, 4, 8)),
        ]:  # fmt: skip
            for policy in POLICIES:
                print(line(label, policy, measure(prompts, policy, capacity=memory, draw=DRAW)))


if __name__ == "__main__":
    main()
