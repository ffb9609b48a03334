"""Running a program: executor, interpreter, streams of text."""
