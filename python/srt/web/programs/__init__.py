"""/v1/submit and the related routes: programs whose graphs clients send whole."""
