"""The program as data: nodes, parameters, graphs and their JSON."""
