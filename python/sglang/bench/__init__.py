"""A load generator: what ``sglang.bench_serving`` and the project's benchmarks measure with."""
