"""What stands before every route: connections, hosts, keys and their limits."""
