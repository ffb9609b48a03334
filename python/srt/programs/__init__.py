"""Programs that run on the server, as plain data: the submission, its calls, their objectives."""
