"""JSON sheets held to a regular expression."""
