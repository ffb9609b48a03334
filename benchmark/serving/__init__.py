"""Load on any server or engine: throughput, latencies, hit rate."""
