"""What happened in a run: text and HTML displays, and the timeline."""
