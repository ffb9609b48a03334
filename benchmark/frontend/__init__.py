"""What the language costs: microseconds a primitive, and run_batch against a client by hand."""
