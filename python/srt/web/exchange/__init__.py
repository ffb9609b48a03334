"""Bodies, answers, streams and errors, as every route reads and writes them."""
