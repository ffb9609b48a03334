"""JSON sheets held to a JSON schema."""
