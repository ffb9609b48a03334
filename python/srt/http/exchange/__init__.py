"""What every route reads and writes: bodies, answers, streams, errors."""
