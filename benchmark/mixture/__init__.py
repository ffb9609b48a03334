"""Throughput with a mixture of experts and with int8 weights."""
