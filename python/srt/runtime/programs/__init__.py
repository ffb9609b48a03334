"""Programs whose graphs were sent whole: sessions, semantic variables, and the runs of graphs."""
