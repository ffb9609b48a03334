"""The runtime of this project, in this process or started by it."""
