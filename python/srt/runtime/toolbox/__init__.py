"""The operator's tools: Python functions that the server runs in child processes."""
