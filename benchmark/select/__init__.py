"""Select: one of many options, by tree, by rows and by constrained decoding."""
