"""What quantisation costs in quality, on the embedded model."""
