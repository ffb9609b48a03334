"""Reading and writing of bodies, answers, streams and errors, for all routes."""
