"""Constraints through our grammars and through those of other projects: right, wrong, how fast."""
