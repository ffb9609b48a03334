"""Programs that a server runs as a whole: submissions, their futures, and replays of their results.

The server makes the calls. The client's interpreter replays the program with their results, so that
the state is the same as after a run by the client.
"""
