"""Checkpoints whose weights are quantised, a file a format; ``open`` knows them all."""
