"""Vision towers: pixels -> hidden states that stand among those of a text."""
