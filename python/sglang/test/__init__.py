"""Helpers that upstream's benchmarks and tests import. This project's tests are in ``test/``."""
