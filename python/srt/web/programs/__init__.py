"""/v1/submit and the routes beside it: programs whose graphs clients send whole."""
