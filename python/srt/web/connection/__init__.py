"""Connections, hosts, keys and their limits: checks before every route."""
