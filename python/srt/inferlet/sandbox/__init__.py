"""Programs that clients upload: kept by their digest, run in the sandbox, followed by events."""
