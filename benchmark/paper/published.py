"""Published: what the SGLang paper's text (Zheng et al. 2024) says of its own evaluation."""

from __future__ import annotations

THROUGHPUT = 6.4  # times, at most, on Llama-7B and an A10G (section 6.2)
LATENCY = 3.7  # times lower, at most (section 6.2)
HITS = (0.50, 0.99)  # hit rates over the benchmarks (section 6.2)
OF_OPTIMAL = 0.96  # of the optimal hit rate, on average (section 6.2, Fig. 13)
IMAGES = (1.15, 0.18)  # images a second: SGLang, the authors' implementation (Table 2)
INPUT_TOKENS = 3.0  # times fewer, about, with API speculation (section 6.2)
JUMP = 1.6  # times, by the compressed finite state machine (section 6.3)
COMPILE = 2.4  # times, by preprocessing it once a batch (section 6.3)
OVERHEAD = 0.003  # of the time, at most: 0.2 of 74.3 seconds (section 6.3)
