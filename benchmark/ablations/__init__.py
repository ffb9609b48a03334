"""Gains of each part of the engine and of the language (the paper's Fig. 8 and Fig. 13)."""
