"""One module a contender, each run as a process of its own by the Python that has its library."""
