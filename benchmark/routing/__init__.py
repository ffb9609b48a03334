"""Routing of requests to many engines, in virtual time."""
