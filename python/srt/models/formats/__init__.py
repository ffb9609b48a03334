"""Quantised checkpoints, one file a format; ``models/checkpoint_format`` lists them."""
