"""The load generator of ``python -m sglang.bench_serving`` and of the project's benchmarks."""
