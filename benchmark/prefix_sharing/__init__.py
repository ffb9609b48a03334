"""A shared prefix is computed once: 64 requests with the cache on and off, and a peer."""
