"""Time that a user waits for the first token."""
