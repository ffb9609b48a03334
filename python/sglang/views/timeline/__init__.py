"""Timeline: what programs did, when, and what it took; see docs/timeline.md."""
