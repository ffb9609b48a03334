"""Ours beside other people's engines: same weights, same work, in turns."""
