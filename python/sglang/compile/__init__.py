"""Tracing a program into a graph, and running the graph."""
