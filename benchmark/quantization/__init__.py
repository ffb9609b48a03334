"""Costs of quantisation in quality, on the embedded model."""
