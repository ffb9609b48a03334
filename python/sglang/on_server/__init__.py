"""Programs that a server runs whole: submissions, their futures, and the replay of their results.

The server runs the calls; the client's interpreter replays the program over their results, so that
its state is that of a plain run.
"""
