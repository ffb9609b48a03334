"""What is told of requests: logs, metrics, spans."""
