"""Costs of the language: microseconds a primitive, and run_batch against a client by hand."""
