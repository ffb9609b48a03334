"""Programs that clients upload and run in a sandbox: /v1/inferlets, /v1/runs."""
