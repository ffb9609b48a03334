"""A conversation as a request, and its reply taken apart."""
