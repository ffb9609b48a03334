"""The runtime of one engine: what every API and the offline engine stand on."""
