"""The version of the runtime; the language's is the same."""

__version__ = "0.1.0"
